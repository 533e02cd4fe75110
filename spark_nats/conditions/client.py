"""What the client says: connecting, logging in, and connections that are lost."""

from spark_nats.conditions import Condition, Transient

NO_SERVER = Condition(
    "no NATS server could be reached ({failures})",
    "nothing listens there; the error lists each server that was tried, with the reason",
)
NO_LOGIN = Condition(
    "no NATS server lets us in ({failures})",
    "one server refuses the credentials, and no other can be reached; the error lists each server",
    transient=Transient.ONCE_ESTABLISHED,
)
CREDENTIALS_REFUSED = Condition(
    "{server} refused the credentials: {reason}",
    "the server's own words; for an expired or revoked user that reconnects, it only says `Authorization Violation`",
    transient=Transient.ONCE_ESTABLISHED,
)
TLS_NOT_OFFERED = Condition(
    "does not offer TLS, but TLS is required; no credentials were sent",
    "an option or a `tls://` URL asks for TLS; nothing secret was sent",
)
CLIENT_CERTIFICATE_MISSING = Condition(
    "requires a client certificate",
    "set `tlsCertFile` and `tlsKeyFile`",
)
CLIENT_CERTIFICATE_REFUSED = Condition(
    "{server} refused the client's certificate: {reason}", transient=Transient.ONCE_ESTABLISHED
)
CERTIFICATE_NOT_VERIFIED = Condition(
    "the server's certificate cannot be verified for the name {name!r}: {reason}",
    "its authority is not trusted (`tlsCaFile`), or the certificate is for another name (`tlsServerName`)",
)
CERTIFICATE_NAME_INVALID = Condition("no certificate can be for the name {name!r}: {reason}")
TLS_FAILED = Condition(
    "the TLS handshake failed: {reason}",
    "the port does not speak TLS, or there is no TLS version that both sides support",
    transient=Transient.ALWAYS,
)
TLS_TIMEOUT = Condition("the TLS handshake was not done in {timeout:g} s", transient=Transient.ALWAYS)
WEBSOCKET_REFUSED = Condition(
    "answers the request for a WebSocket with {reason}",
    "a gateway in between refuses, or the server does. 401, 403: check its login (`websocketHeadersSecret`), or "
    "the origin, which the server may not allow; 404: check the path in `servers`; a redirect is not followed: "
    "set `servers` to its target; 400: the port uses TLS (`wss://`); 502 to 504: there is no server behind the "
    "gateway",
    transient=Transient.ONCE_ESTABLISHED,
)
WEBSOCKET_NOT_SPOKEN = Condition(
    "speaks NATS without a WebSocket there: its URL begins with nats:// or tls://",
    "`ws://` needs the port of the server's block `websocket`, which is not 4222",
    transient=Transient.ONCE_ESTABLISHED,
)
WEBSOCKET_FAILED = Condition(
    "the handshake for a WebSocket failed: {reason}",
    "another program listens there, the port requires TLS (`wss://`), or something in between changes bytes",
    transient=Transient.ONCE_ESTABLISHED,
)
WEBSOCKET_TIMEOUT = Condition(
    "did not answer the request for a WebSocket in {timeout:g} s",
    "the port does not serve WebSockets, or a gateway in between has no server: raise `connectTimeout`",
    transient=Transient.ALWAYS,
)
WEBSOCKET_NOT_INSTALLED = Condition(
    "to connect through a WebSocket the package 'wsproto' is needed, on the driver and on every executor: "
    'install it with: pip install "spark-nats[websocket]"',
    "install the extra `websocket` there",
)
PROXY_UNREACHABLE = Condition(
    "the proxy {proxy} cannot be reached: {reason}",
    "nothing listens there, or the name is unknown (`proxy`, or an environment variable such as `HTTP_PROXY`)",
    transient=Transient.ALWAYS,
)
PROXY_REFUSED = Condition(
    "the proxy {proxy} does not connect to it: {reason}",
    "407, or a refused login: set `proxyUser` and `proxyPassword`. 403, or a rule: the proxy may not connect "
    "there; often it allows only port 443. 502 to 504, and hosts or networks that it cannot reach, count as a "
    "server that is away",
)
PROXY_FAILED = Condition(
    "the proxy {proxy} cannot be used: {reason}",
    "it is another kind of proxy, or not a proxy",
)
PROXY_TIMEOUT = Condition(
    "the proxy {proxy} did not connect to it in {timeout:g} s", "raise `connectTimeout`", transient=Transient.ALWAYS
)
INFO_TIMEOUT = Condition(
    "accepted the connection but sent no INFO in {timeout:g} s; {doubt}",
    "this port belongs to something else (8222 is the server's monitoring), the server does TLS first: "
    "`tlsHandshakeFirst`, or it expects a WebSocket: `ws://`",
    transient=Transient.ALWAYS,
)
CLOSED_BEFORE_INFO = Condition("{reason} before INFO; {doubt}", transient=Transient.ONCE_ESTABLISHED)
CONNECT_TIMEOUT = Condition(
    "did not answer CONNECT in {timeout:g} s", "it is busy: raise `connectTimeout`", transient=Transient.ALWAYS
)
NOTHING_TO_SIGN = Condition(
    "the server sent no nonce to sign, so it accepts neither nkeys nor JWTs; log in another way",
    "its users have no nkeys or JWTs",
    transient=Transient.ONCE_ESTABLISHED,
)
NKEYS_NOT_INSTALLED = Condition(
    "to log in with an nkey or a JWT, install the package 'nkeys' on the driver and on every executor: pip "
    'install "spark-nats[nkeys]"',
    "install the extra `nkeys` there",
)
CLIENT_CERTIFICATE_INVALID = Condition(
    "the client's certificate and key are not a pair of PEM files, or the key is encrypted: {reason}",
    "use the right file",
)
NO_AUTHORITIES = Condition("the certificates to trust are empty")
AUTHORITIES_INVALID = Condition("the certificates to trust are not in PEM")
SEED_INVALID = Condition("the nkey seed is not that of a user, which begins with SU")
PERMISSION_MISSING = Condition(
    "{server} refused: {reason}; the user lacks this permission",
    "allow the subject in the error; [permissions](login.md#permissions) lists all of them, and `spark-nats "
    "check` says which are missing",
)
NOBODY_LISTENS = Condition(
    "nobody listens on {subject} at {server}",
    "no service answers such requests there; for JetStream, see below",
)
CONNECTION_BROKE = Condition(
    "the connection to {server} broke: {reason}",
    "the network failed, or a server was killed; shown at the end of `retryTimeout`",
    transient=Transient.ALWAYS,
)
SERVER_CLOSED = Condition("{server} closed the connection", transient=Transient.ALWAYS)
SERVER_SILENT = Condition(
    "{server} did not answer {pings} PINGs, {interval:g} s apart; the connection is given up",
    transient=Transient.ALWAYS,
)
PING_TIMEOUT = Condition("{server} did not answer PING in {timeout:g} s", transient=Transient.ALWAYS)
CONNECTION_CLOSED = Condition("the connection to {server} is closed", transient=Transient.ALWAYS)
SEND_TIMEOUT = Condition(
    "{server} took no data for {timeout:g} s; {bytes} bytes were not sent",
    "a server hangs or is overloaded: check it, or raise `requestTimeout`",
    transient=Transient.ALWAYS,
)
REQUEST_TIMEOUT = Condition("no answer from {server} to {subject} in {timeout:g} s", transient=Transient.ALWAYS)
SERVER_SHUTTING_DOWN = Condition(
    "{server} is shutting down (lame duck mode)",
    "and no other server in `servers` lets us in: name all servers, or set `discoverServers`",
    transient=Transient.ALWAYS,
)
SERVER_ERROR = Condition(
    "{server} reported: {reason}",
    "the server's own words, such as `maximum connections exceeded`: run fewer tasks, or raise the limit",
)
NOT_NATS = Condition(
    "{server} does not speak the NATS protocol: {reason}",
    "another program listens on that port, or something in between changes bytes",
)
TRYING_AGAIN = Condition(
    "{what}: {reason}; trying again{limit}",
    "a server is away, or a stream has no leader: the query waits for up to `retryTimeout`. The line begins with "
    "`reading ORDERS`, `writing to ORDERS`, `listening to …` or, in a task, `reading ORDERS, sequences 1 to 500`",
)
GOES_ON = Condition(
    "{what}: resumed after {seconds:.1f} s",
    "the server is back. A `NATS_TRYING_AGAIN` without this line is a query that still waits",
)
LAME_DUCK = Condition(
    "{server} is shutting down (lame duck mode)",
    "a server is about to restart; the query moves to another one",
)
