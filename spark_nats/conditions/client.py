"""The conditions of the client: connecting, logging in, and lost connections."""

from spark_nats.conditions import Condition, Topic, once_established, passing, set_codes

NO_SERVER = Condition("no NATS server could be reached ({failures})")
NO_LOGIN = once_established("no NATS server lets us in ({failures})")
CREDENTIALS_REFUSED = once_established("{server} refused the credentials: {reason}", Topic.CREDENTIALS)
LOGIN_UNDECIDED = once_established(
    "{server} refused the credentials after {seconds:.1f} s: {reason}; whoever decides about them for the server, such "
    "as an auth callout, may be away",
    Topic.CREDENTIALS,
)
LOGIN_ENDED = passing("{server} has ended the login: {reason}", Topic.CREDENTIALS)
TLS_NOT_OFFERED = Condition("does not offer TLS, but TLS is required; no credentials were sent", Topic.TLS)
CLIENT_CERTIFICATE_MISSING = Condition("requires a client certificate", Topic.CLIENT_CERTIFICATE)
CLIENT_CERTIFICATE_REFUSED = once_established(
    "{server} refused the client's certificate: {reason}", Topic.CLIENT_CERTIFICATE
)
CERTIFICATE_NOT_VERIFIED = Condition(
    "the server's certificate cannot be verified for the name {name!r}: {reason}", Topic.TRUST
)
CERTIFICATE_NAME_INVALID = Condition("no certificate can be for the name {name!r}: {reason}", Topic.TRUST)
TLS_FAILED = passing("the TLS handshake failed: {reason}")
TLS_TIMEOUT = passing("the TLS handshake was not done in {timeout:g} s")
PROXY_UNREACHABLE = passing("the proxy {proxy} cannot be reached: {reason}")
PROXY_REFUSED = Condition("the proxy {proxy} does not connect to it: {reason}")
PROXY_FAILED = Condition("the proxy {proxy} cannot be used: {reason}", Topic.PROXY)
PROXY_TIMEOUT = passing("the proxy {proxy} did not connect to it in {timeout:g} s")
INFO_TIMEOUT = passing(
    "accepted the connection but sent no INFO in {timeout:g} s; the server may hang or be overloaded; else, {doubt}"
)
CLOSED_BEFORE_INFO = once_established("{reason} before INFO; {doubt}")
CONNECT_TIMEOUT = passing("did not answer CONNECT in {timeout:g} s")
NOTHING_TO_SIGN = once_established(
    "the server sent no nonce to sign, so it accepts neither nkeys nor JWTs; log in another way", Topic.CREDENTIALS
)
NKEYS_NOT_INSTALLED = Condition(
    "to log in with an nkey or a JWT, install the package 'nkeys' on the driver and on every executor, with the "
    "extra 'nkeys' of spark-nats; see Installing in the documentation"
)
CLIENT_CERTIFICATE_INVALID = Condition(
    "the client's certificate and key are not a pair of PEM files, or the key is encrypted: {reason}",
    Topic.CLIENT_CERTIFICATE,
)
NO_AUTHORITIES = Condition("the certificates to trust are empty")
AUTHORITIES_INVALID = Condition("the certificates to trust are not in PEM", Topic.TRUST)
SEED_INVALID = Condition("the nkey seed is not that of a user, which begins with SU", Topic.CREDENTIALS)
PERMISSION_MISSING = Condition("{server} refused: {reason}; the user lacks this permission")
NOBODY_LISTENS = Condition("nobody listens on {subject} at {server}")
CONNECTION_BROKE = passing("the connection to {server} broke: {reason}")
SERVER_CLOSED = passing("{server} closed the connection")
SERVER_SILENT = passing("{server} did not answer {pings} PINGs, {interval:g} s apart; the connection is given up")
PING_TIMEOUT = passing("{server} did not answer PING in {timeout:g} s")
CONNECTION_CLOSED = passing("the connection to {server} is closed")
SEND_TIMEOUT = passing("{server} took no data for {timeout:g} s; {bytes} bytes were not sent")
REQUEST_TIMEOUT = passing("no answer from {server} to {subject} in {timeout:g} s")
SERVER_SHUTTING_DOWN = passing("{server} is shutting down (lame duck mode)")
SERVER_ERROR = Condition("{server} reported: {reason}")
NOT_NATS = Condition("{server} does not speak the NATS protocol: {reason}")
TRYING_AGAIN = Condition("{what}: {reason}; trying again{limit}")
GOES_ON = Condition("{what}: resumed after {seconds:.1f} s")
LAME_DUCK = Condition("{server} is shutting down (lame duck mode)")
ROW_TOO_LARGE = Condition(
    "row {row} of the task is larger with its headers than the server's max_payload, which is {most} bytes now"
)

set_codes(globals())
