"""The conditions of the client: connecting, logging in, and lost connections."""

from spark_nats.conditions import Condition, Topic, Transient, passing

NO_SERVER = Condition("[NATS_NO_SERVER] no NATS server could be reached ({failures})")
NO_LOGIN = Condition("[NATS_NO_LOGIN] no NATS server lets us in ({failures})", transient=Transient.ONCE_ESTABLISHED)
CREDENTIALS_REFUSED = Condition(
    "[NATS_CREDENTIALS_REFUSED] {server} refused the credentials: {reason}",
    Topic.CREDENTIALS,
    transient=Transient.ONCE_ESTABLISHED,
)
LOGIN_ENDED = passing("[NATS_LOGIN_ENDED] {server} has ended the login: {reason}", Topic.CREDENTIALS)
TLS_NOT_OFFERED = Condition(
    "[NATS_TLS_NOT_OFFERED] does not offer TLS, but TLS is required; no credentials were sent", Topic.TLS
)
CLIENT_CERTIFICATE_MISSING = Condition(
    "[NATS_CLIENT_CERTIFICATE_MISSING] requires a client certificate", Topic.CLIENT_CERTIFICATE
)
CLIENT_CERTIFICATE_REFUSED = Condition(
    "[NATS_CLIENT_CERTIFICATE_REFUSED] {server} refused the client's certificate: {reason}",
    Topic.CLIENT_CERTIFICATE,
    transient=Transient.ONCE_ESTABLISHED,
)
CERTIFICATE_NOT_VERIFIED = Condition(
    "[NATS_CERTIFICATE_NOT_VERIFIED] the server's certificate cannot be verified for the name {name!r}: {reason}",
    Topic.TRUST,
)
CERTIFICATE_NAME_INVALID = Condition(
    "[NATS_CERTIFICATE_NAME_INVALID] no certificate can be for the name {name!r}: {reason}", Topic.TRUST
)
TLS_FAILED = passing("[NATS_TLS_FAILED] the TLS handshake failed: {reason}")
TLS_TIMEOUT = passing("[NATS_TLS_TIMEOUT] the TLS handshake was not done in {timeout:g} s")
PROXY_UNREACHABLE = passing("[NATS_PROXY_UNREACHABLE] the proxy {proxy} cannot be reached: {reason}")
PROXY_REFUSED = Condition("[NATS_PROXY_REFUSED] the proxy {proxy} does not connect to it: {reason}")
PROXY_FAILED = Condition("[NATS_PROXY_FAILED] the proxy {proxy} cannot be used: {reason}", Topic.PROXY)
PROXY_TIMEOUT = passing("[NATS_PROXY_TIMEOUT] the proxy {proxy} did not connect to it in {timeout:g} s")
INFO_TIMEOUT = passing("[NATS_INFO_TIMEOUT] accepted the connection but sent no INFO in {timeout:g} s; {doubt}")
CLOSED_BEFORE_INFO = Condition(
    "[NATS_CLOSED_BEFORE_INFO] {reason} before INFO; {doubt}", transient=Transient.ONCE_ESTABLISHED
)
CONNECT_TIMEOUT = passing("[NATS_CONNECT_TIMEOUT] did not answer CONNECT in {timeout:g} s")
NOTHING_TO_SIGN = Condition(
    "[NATS_NOTHING_TO_SIGN] the server sent no nonce to sign, so it accepts neither nkeys nor JWTs; log in another way",
    Topic.CREDENTIALS,
    transient=Transient.ONCE_ESTABLISHED,
)
NKEYS_NOT_INSTALLED = Condition(
    "[NATS_NKEYS_NOT_INSTALLED] to log in with an nkey or a JWT, install the package 'nkeys' on the driver and on "
    'every executor: pip install "spark-nats[nkeys]"'
)
CLIENT_CERTIFICATE_INVALID = Condition(
    "[NATS_CLIENT_CERTIFICATE_INVALID] the client's certificate and key are not a pair of PEM files, or the key is "
    "encrypted: {reason}",
    Topic.CLIENT_CERTIFICATE,
)
NO_AUTHORITIES = Condition("[NATS_NO_AUTHORITIES] the certificates to trust are empty")
AUTHORITIES_INVALID = Condition("[NATS_AUTHORITIES_INVALID] the certificates to trust are not in PEM", Topic.TRUST)
SEED_INVALID = Condition(
    "[NATS_SEED_INVALID] the nkey seed is not that of a user, which begins with SU", Topic.CREDENTIALS
)
PERMISSION_MISSING = Condition("[NATS_PERMISSION_MISSING] {server} refused: {reason}; the user lacks this permission")
NOBODY_LISTENS = Condition("[NATS_NOBODY_LISTENS] nobody listens on {subject} at {server}")
CONNECTION_BROKE = passing("[NATS_CONNECTION_BROKE] the connection to {server} broke: {reason}")
SERVER_CLOSED = passing("[NATS_SERVER_CLOSED] {server} closed the connection")
SERVER_SILENT = passing(
    "[NATS_SERVER_SILENT] {server} did not answer {pings} PINGs, {interval:g} s apart; the connection is given up"
)
PING_TIMEOUT = passing("[NATS_PING_TIMEOUT] {server} did not answer PING in {timeout:g} s")
CONNECTION_CLOSED = passing("[NATS_CONNECTION_CLOSED] the connection to {server} is closed")
SEND_TIMEOUT = passing("[NATS_SEND_TIMEOUT] {server} took no data for {timeout:g} s; {bytes} bytes were not sent")
REQUEST_TIMEOUT = passing("[NATS_REQUEST_TIMEOUT] no answer from {server} to {subject} in {timeout:g} s")
SERVER_SHUTTING_DOWN = passing("[NATS_SERVER_SHUTTING_DOWN] {server} is shutting down (lame duck mode)")
SERVER_ERROR = Condition("[NATS_SERVER_ERROR] {server} reported: {reason}")
NOT_NATS = Condition("[NATS_NOT_NATS] {server} does not speak the NATS protocol: {reason}")
TRYING_AGAIN = Condition("[NATS_TRYING_AGAIN] {what}: {reason}; trying again{limit}")
GOES_ON = Condition("[NATS_GOES_ON] {what}: resumed after {seconds:.1f} s")
LAME_DUCK = Condition("[NATS_LAME_DUCK] {server} is shutting down (lame duck mode)")
ROW_TOO_LARGE = Condition(
    "[NATS_ROW_TOO_LARGE] row {row} of the task is larger with its headers than the server's max_payload, which is "
    "{most} bytes now"
)
