"""Every key of nats-server's configuration file, with a value for it; the reference page and its test walk through it.

What this server makes of a key is not written here: the page asks the reader of configuration files.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from jetlake.errors import JetlakeError
from jetlake.server.config.assemble import assemble

__all__ = ["SECTIONS", "Key", "Outcome", "Section", "configuration_of", "outcome_of"]

CERTIFICATES = Path(__file__).parent.parent / "tests" / "conformance" / "certificates"
CERT = f'cert_file: "{CERTIFICATES}/server.pem", key_file: "{CERTIFICATES}/server-key.pem"'
CA = f'ca_file: "{CERTIFICATES}/ca.pem"'

TRUSTED_KEY = "OCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYOCS"
# The operator of that key, with a seed that everybody may know.
OPERATOR = (
    "eyJ0eXAiOiAiSldUIiwgImFsZyI6ICJlZDI1NTE5LW5rZXkifQ.eyJpYXQiOiAxNzk1MDM0MTg5LCAiaXNzIjogIk9DRklSWTY1T"
    "1FFN0RGUDVLTE5TMlBGMkxWWk1VWllKWDRPWklFUTM2TjJJUUFOVUI1WFZZT0NTIiwgIm5hbWUiOiAib3BlcmF0b3IiLCAic3ViI"
    "jogIk9DRklSWTY1T1FFN0RGUDVLTE5TMlBGMkxWWk1VWllKWDRPWklFUTM2TjJJUUFOVUI1WFZZT0NTIiwgIm5hdHMiOiB7InR5c"
    "GUiOiAib3BlcmF0b3IiLCAidmVyc2lvbiI6IDJ9LCAianRpIjogIkJWNlhTUklXNkNTU0xQQzVXUE9FTzczNFRFQzZENzdVRFBIQ"
    "kUzQ0szQUZDMzdXR1ZXRFEifQ.G80LcvcF5nHG2ikItPKi1VNmwv4JHjJa4qP4E-bkq1nq-MQ3J7-IqIsvNn1LZ0b6ypL591u8U5"
    "AL6GNRRG8aCw"
)
ISSUER = "AAXOZWI6XPA5YI2TKHVTECWVBFC3QJNCQXOQWUS4GWT67BKKCFXEAVTJ"
TRUSTING = f"trusted_keys: [{TRUSTED_KEY}], resolver: MEMORY"


class Key(NamedTuple):
    """A key under all its names, a value that nats-server takes, and what the key is for."""

    names: str
    value: str
    meaning: str
    beside: str = ""
    """What has to stand in the section with it."""
    around: str = ""
    """What has to stand in the file with it."""
    checked: bool = True
    """nats-server's own `-t` takes the value; not so for what belongs to files or servers that are not there."""


class Section(NamedTuple):
    """A map of the configuration; `%s` in the frame is where its keys stand."""

    title: str
    frame: str
    keys: tuple[Key, ...]


class Outcome(NamedTuple):
    """What this server makes of a key: `works`, `refused` or `ignored`, and why."""

    kind: str
    reason: str


USERS = "authorization { users [ { user: a, password: a } ] }"
PINNED = '"' + "a" * 64 + '"'
_TLS = (
    Key("cert_file", f'"{CERTIFICATES}/server.pem"', "the server's certificate"),
    Key("key_file", f'"{CERTIFICATES}/server-key.pem"', "its key"),
    Key("ca_file", f'"{CERTIFICATES}/ca.pem"', "the authority of clients' certificates"),
    Key("verify", "true", "clients must show a certificate", CA),
    Key("verify_and_map", "true", "the certificate names the user", CA, USERS),
    Key("verify_cert_and_check_known_urls", "true", "only servers of a cluster may connect", CA, checked=False),
    Key("timeout", "3", "the maximum time of a handshake"),
    Key("handshake_first, first, immediate", "true", "TLS comes before INFO"),
    Key("min_version", '"1.3"', "the oldest version of TLS"),
    Key("cipher_suites", '["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]', "the ciphers of TLS 1.2"),
    Key("curve_preferences", '["CurveP256"]', "the curves"),
    Key("pinned_certs", f"[{PINNED}]", "the certificates that may be shown"),
    Key("connection_rate_limit", "100", "handshakes a second"),
    Key("ocsp_peer", "true", "asks whether a client's certificate is revoked", f"{CA}, verify: true"),
    Key("certs", f"[ {{ {CERT} }} ]", "several certificates, chosen by name", checked=False),
    Key("cert_store", '"WindowsCurrentUser"', "the certificate store of Windows", checked=False),
    Key("cert_match_by", '"Subject"', "how a certificate is found there", checked=False),
    Key("cert_match", '"x"', "the value to match", checked=False),
    Key("cert_match_skip_invalid", "true", "skips expired ones", checked=False),
    Key("ca_certs_match", '["x"]', "authorities in that store", checked=False),
    Key("insecure", "true", "only for connections to other servers"),
)
_PERMISSIONS = (
    Key("publish, pub, import", '{ allow: ["a"], deny: ["b"] }', "subjects that may be published to"),
    Key("subscribe, sub, export", '{ allow: ["a"], deny: ["b q"] }', "subjects, with or without a group, to subscribe"),
    Key("allow_responses, publish_allow_responses", '{ max: 2, expires: "1m" }', "replies to received messages"),
)
_SUB = "publish: x"

SECTIONS: tuple[Section, ...] = (
    Section(
        "The file",
        "%s",
        (
            Key("listen", '"127.0.0.1:4333"', "address and port for clients"),
            Key("host, net", '"127.0.0.1"', "only the address"),
            Key("port", "4333", "only the port"),
            Key("server_name", "one", "the server's name"),
            Key("server_tags", '["a", "b:c"]', "labels that `/varz` shows"),
            Key("server_metadata", "{ a: b }", "labels for other servers"),
            Key("client_advertise", '"example:4222"', "the address advertised to clients"),
            Key("http", '"127.0.0.1:8333"', "monitoring"),
            Key("http_port, monitor_port", "8333", "the port of monitoring alone"),
            Key("https", '"127.0.0.1:8334"', "monitoring over TLS", "", f"tls {{ {CERT} }}"),
            Key("https_port", "8334", "only its port", "", f"tls {{ {CERT} }}"),
            Key("http_base_path", '"/nats"', "a prefix of the monitoring paths"),
            Key("authorization", "{ user: a, password: b }", "a token, a user or users"),
            Key("accounts", "{ A { users [ { user: a, password: b } ] } }", "accounts"),
            Key("no_auth_user", "a", "the user of clients without credentials", "", USERS),
            Key("system_account, system", '"$SYS"', "the account of the server's own subjects"),
            Key("no_system_account, no_system, no_sys_acc", "true", "turns that account off"),
            Key("default_sentinel", f'"{OPERATOR}"', "credentials of clients without any", "", TRUSTING, checked=False),
            Key("mappings, maps", "{ a: b }", "redirects published messages to other subjects"),
            Key("tls", f"{{ {CERT} }}", "TLS for clients"),
            Key("allow_non_tls", "true", "also allows clients without TLS", "", f"tls {{ {CERT} }}"),
            Key("ocsp", "false", "OCSP staples of the server's certificate"),
            Key("ocsp_cache", "false", "keeps the answers for `ocsp_peer`"),
            Key("websocket, ws", '{ listen: "127.0.0.1:-1", no_tls: true }', "clients over WebSocket"),
            Key("leafnodes, leaf", '{ listen: "127.0.0.1:-1" }', "leaf nodes, and hubs"),
            Key("cluster", '{ name: c, listen: "127.0.0.1:-1" }', "other servers of a cluster"),
            Key("gateway", '{ name: c, listen: "127.0.0.1:-1" }', "other clusters"),
            Key("mqtt", '{ listen: "127.0.0.1:-1" }', "clients over MQTT", "", "server_name: a, jetstream: true"),
            Key("proxies", "{ trusted [] }", "proxies that vouch for clients", checked=False),
            Key("proxy_protocol", "true", "addresses of clients behind a proxy"),
            Key("jetstream", "true", "streams"),
            Key("store_dir, storedir", '"STORE_DIR"', "the directory of streams"),
            Key("feature_flags", "{ js_ack_fc_v2: true }", "newer forms of subjects"),
            Key(
                "default_js_domain",
                '{ A: "x" }',
                "domains of accounts, for leaf nodes of nats-server 2.2",
                "",
                "accounts { A {} }",
            ),
            Key(
                "operator, operators, roots, root",
                f'"{OPERATOR}"',
                "operators' JWTs",
                "",
                "resolver: MEMORY",
                checked=False,
            ),
            Key("trusted, trusted_keys", f"[{TRUSTED_KEY}]", "operators' keys", "", "resolver: MEMORY", checked=False),
            Key(
                "resolver, account_resolver, accounts_resolver",
                "MEMORY",
                "where accounts' JWTs are: `MEMORY`, a folder, or `URL(https://…)`, where they are looked up",
                "",
                f"trusted_keys: [{TRUSTED_KEY}]",
                checked=False,
            ),
            Key("resolver_tls", "{}", "TLS of the resolver", "", TRUSTING, checked=False),
            Key("resolver_preload", "{}", "accounts' JWTs", "", TRUSTING, checked=False),
            Key("resolver_pinned_accounts", "[]", "accounts in the resolver", "", TRUSTING, checked=False),
            Key("max_payload", "1MB", "the largest message"),
            Key("max_pending", "64MB", "the maximum bytes that wait for one connection"),
            Key("max_control_line", "4096", "the maximum length of a control line"),
            Key("max_connections, max_conn", "100", "the maximum number of clients"),
            Key("max_subscriptions, max_subs", "100", "the maximum number of subscriptions of a connection"),
            Key("max_sub_tokens, max_subscription_tokens", "10", "the maximum number of tokens of a subject"),
            Key("max_closed_clients", "10", "ended connections that `/connz` remembers"),
            Key("no_header_support", "true", "messages have no headers"),
            Key("ping_interval", '"2m"', "the interval between pings"),
            Key("ping_max", "2", "the number of unanswered pings after which a connection ends"),
            Key("write_deadline", '"10s"', "the maximum time of a write"),
            Key("write_timeout", "close", "what happens when a write takes longer"),
            Key("lame_duck_duration", '"2m"', "the time in which a leaving server disconnects its clients"),
            Key("lame_duck_grace_period", '"10s"', "the delay before a leaving server disconnects clients"),
            Key("no_fast_producer_stall", "true", "publishers are not slowed down"),
            Key("disable_sublist_cache", "true", "routing without a cache"),
            Key("connect_error_reports", "10", "failed dials between two log lines"),
            Key("reconnect_error_reports", "10", "failed reconnects between two log lines"),
            Key("debug", "true", "more log lines"),
            Key("trace", "true", "every protocol line in the log"),
            Key("trace_verbose", "true", "traces the system account too"),
            Key("trace_headers", "true", "only the headers of payloads"),
            Key("max_traced_msg_len", "100", "the part of a payload that a trace shows"),
            Key("logtime", "true", "timestamps in the log"),
            Key("logtime_utc", "true", "timestamps in UTC"),
            Key("log_file, logfile", '"LOG_FILE"', "the log's file"),
            Key("log_size_limit, logfile_size_limit", "1MB", "the size at which the log file is rotated"),
            Key("logfile_max_num, log_max_num", "3", "the number of old log files to keep"),
            Key("syslog", "true", "logs to the system log"),
            Key("remote_syslog", '"udp://localhost:514"', "logs to the system log of another machine"),
            Key("pidfile, pid_file", '"PID_FILE"', "the file with the process id"),
            Key("ports_file_dir", '"STORE_DIR"', "the folder of the file with the ports"),
            Key("prof_port", "6060", "Go's profiler"),
            Key("prof_block_rate", "1", "the profiler's sampling"),
        ),
    ),
    Section("`tls`", f"tls {{ {CERT}, %s }}", _TLS),
    Section(
        "`authorization`",
        "authorization { %s }",
        (
            Key("user, username", "a", "the only user", "password: b"),
            Key("password, pass", "b", "the password, in the clear or hashed by bcrypt", "user: a"),
            Key("token", "t", "the token of all clients"),
            Key("users", "[ { user: a, password: b } ]", "users"),
            Key("permissions", "{ publish: x }", "permissions of the only user", "user: a, password: b"),
            Key(
                "default_permissions",
                "{ publish: x }",
                "permissions of users without any",
                "users [ { user: a, password: b } ]",
            ),
            Key("timeout", "2", "how long a client may take to authenticate"),
            Key(
                "auth_callout",
                "{ issuer: ABJHLOVMPA4CI6R5KLNGOB4GSLNIY7IOUPAJC4YFNDLQVIOBYQGUWVLA, auth_users: [ a ] }",
                "asks a service who may connect",
                checked=False,
            ),
            Key(
                "proxy_required",
                "true",
                "clients must come through a trusted proxy",
                "user: a, password: b",
                checked=False,
            ),
        ),
    ),
    Section(
        "`auth_callout`",
        "accounts { AUTH { users [ { user: s, password: p } ] }, B {} }\n"
        f"authorization {{ auth_callout {{ issuer: {ISSUER}, account: AUTH, auth_users: [s], %s }} }}",
        (
            Key("issuer", ISSUER, "the public key that signs answers"),
            Key("account, acc", "AUTH", "the account of the service"),
            Key("auth_users, users", "[s]", "users that the service does not decide about"),
            Key(
                "xkey, key",
                "XCHUBRNNW2HSKYSK4WZBJ2TWPJXMSTMCTU6XWXQ22G5G6PRBHAUF76G7",
                "the public key that requests are encrypted for",
            ),
            Key("allowed_accounts", "[B]", "the accounts that the service may let clients into"),
        ),
    ),
    Section(
        "Who a user in `users` is",
        "authorization { users [ { %s } ] }",
        (
            Key("user, username", "a", "the name", "password: b"),
            Key("password, pass", "b", "the password, in the clear or hashed by bcrypt", "user: a"),
            Key(
                "nkey", "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK", "the public key, without a password"
            ),
        ),
    ),
    Section(
        "A user in `users`",
        "authorization { users [ { user: a, password: b, %s } ] }",
        (
            Key("permissions, permission, authorization", "{ publish: x }", "what the user may do"),
            Key(
                "allowed_connection_types, connection_types, clients",
                '["STANDARD", "WEBSOCKET"]',
                "how the user may connect",
            ),
            Key("proxy_required", "true", "the user must come through a trusted proxy", checked=False),
        ),
    ),
    Section(
        "`permissions`",
        "authorization { users [ { user: a, password: b, permissions { %s } } ] }",
        _PERMISSIONS,
    ),
    Section(
        "`publish` and `subscribe`",
        "authorization { users [ { user: a, password: b, permissions { publish { %s } } } ] }",
        (Key("allow", "[x]", "allowed subjects"), Key("deny", "[x]", "denied subjects")),
    ),
    Section(
        "`allow_responses`",
        "authorization { users [ { user: a, password: b, permissions { allow_responses { %s } } } ] }",
        (
            Key("max, max_msgs, max_messages, max_responses", "5", "the maximum number of replies to a message"),
            Key("expires, expiration, ttl", '"1m"', "the time in which replies are allowed"),
        ),
    ),
    Section(
        "An account in `accounts`",
        "accounts { X { exports [ { stream: s }, { service: q } ] }, A { %s } }",
        (
            Key("users", "[ { user: a, password: b } ]", "its users"),
            Key("jetstream", "enabled", "its streams, and their limits", "", "jetstream { store_dir: STORE_DIR }"),
            Key("limits", "{ max_connections: 2 }", "limits of its connections"),
            Key("exports", "[ { stream: s } ]", "subjects that other accounts may import"),
            Key("imports", "[ { stream { account: X, subject: s } } ]", "subjects of other accounts that it imports"),
            Key("mappings, maps", "{ a: b }", "redirects published messages to other subjects"),
            Key("default_permissions", "{ publish: x }", "permissions of its users without any"),
            Key("msg_trace, trace_dest", "{ dest: t, sampling: 50 }", "traces of its messages"),
            Key("nkey", '"AAYHGF74J7WUWTE4ZIVUZ2RADOQMKBLPBXJNWR7WYHU2KPHGHPUFVEAG"', "its public key", checked=False),
        ),
    ),
    Section(
        "`limits` of an account",
        "accounts { A { limits { %s } } }",
        (
            Key("max_connections, max_conn", "2", "the maximum number of clients"),
            Key("max_subscriptions, max_subs", "2", "the maximum number of subscriptions of a connection"),
            Key("max_payload, max_pay", "1000", "the largest message"),
            Key("max_leafnodes, max_leafs", "2", "leaf nodes"),
        ),
    ),
    Section(
        "`jetstream` of an account",
        "jetstream { store_dir: STORE_DIR }\naccounts { A { jetstream { %s } } }",
        (
            Key("max_memory, max_mem, mem, memory", "1MB", "bytes of its streams in memory"),
            Key("max_store, max_file, max_disk, store, disk", "1MB", "bytes of its streams in files"),
            Key("max_streams, streams", "2", "its streams"),
            Key("max_consumers, consumers", "2", "its consumers"),
            Key("max_ack_pending", "10", "the highest `max_ack_pending` of its consumers"),
            Key("memory_max_stream_bytes, mem_max_stream_bytes", "1MB", "bytes of one stream in memory"),
            Key("disk_max_stream_bytes, store_max_stream_bytes", "1MB", "bytes of one stream in files"),
            Key("max_bytes_required, max_stream_bytes, max_bytes", "true", "streams must set `max_bytes`"),
            Key("cluster_traffic", "system", "the account of a cluster's own traffic"),
        ),
    ),
    Section(
        "`msg_trace`",
        "accounts { A { msg_trace { %s } } }",
        (
            Key("dest", "t", "the subject that traces are sent to"),
            Key("sampling", "50", "the share of messages that are traced", "dest: t"),
        ),
    ),
    Section(
        "An entry of `mappings`",
        "mappings { a: [ { %s } ] }",
        (
            Key("destination, dest", "b", "the subject that messages go to", "weight: 50"),
            Key("weight", "50", "the share of messages that go there", "destination: b"),
            Key("cluster", "x", "applies only in this cluster", "destination: b, weight: 50"),
        ),
    ),
    Section(
        "What an entry of `exports` is",
        "accounts { A { exports [ { %s } ] } }",
        (Key("stream", "s", "messages"), Key("service", "s", "requests")),
    ),
    Section(
        "`latency`",
        "accounts { A { exports [ { service: s, latency { %s } } ] } }",
        (
            Key("sampling", "50", "the share of requests that are measured", "subject: l"),
            Key("subject", "l", "where measurements are published"),
        ),
    ),
    Section(
        "What an entry of `imports` is",
        "accounts { X { exports [ { stream: s }, { service: s } ] }, A { imports [ { %s } ] } }",
        (
            Key("stream", "{ account: X, subject: s }", "messages"),
            Key("service", "{ account: X, subject: s }", "requests"),
            Key("prefix", "p", "a prefix of the subjects", "stream: { account: X, subject: s }"),
        ),
    ),
    Section(
        "An entry of `exports`",
        "accounts { A { exports [ { service: q, %s } ] } }",
        (
            Key("accounts", "[ B ]", "who may import it", "", "accounts { B {} }"),
            Key("response, response_type", "stream", "the number of answers to a request"),
            Key("response_threshold, response_max_time, response_time", '"1s"', "the maximum time until an answer"),
            Key("latency", "{ sampling: 50, subject: l }", "measures answers"),
            Key("allow_trace", "true", "traces continue in this account"),
            Key("account_token_position", "1", "the token of the subject that is the importer's key", checked=False),
        ),
    ),
    Section(
        "An entry of `imports`",
        "accounts { X { exports [ { service: q } ] }, A { imports [ { service { account: X, subject: q }, %s } ] } }",
        (
            Key("to", "z", "the local subject"),
            Key("share", "true", "the exporter learns who sends the request"),
        ),
    ),
    Section(
        "`jetstream`",
        "jetstream { %s }",
        (
            Key("enabled, enable", "true", "`false` turns it off"),
            Key("store_dir, storedir, store", '"STORE_DIR"', "the directory of streams"),
            Key("max_memory_store, max_mem_store, max_mem", "1GB", "bytes of streams in memory"),
            Key("max_file_store, max_file", "1GB", "bytes of streams in files"),
            Key("domain", "d", "the name under which other servers find the streams"),
            Key("strict", "true", "requests with unknown fields are refused"),
            Key(
                "sync_interval, sync",
                '"1m"',
                "how often the disk is synced; `always`, the default here, is before each PubAck",
            ),
            Key("key, encryption_key, ek", '"0123456789abcdef0123456789abcdef"', "encrypts what is stored"),
            Key("cipher", "aes", "the cipher", 'key: "0123456789abcdef0123456789abcdef"'),
            Key(
                "prev_key, prev_encryption_key, prev_ek",
                '"abcdef0123456789abcdef0123456789"',
                "the key before a rotation",
                'key: "0123456789abcdef0123456789abcdef"',
            ),
            Key("tpm", "{}", "the key is in a TPM", checked=False),
            Key("limits", "{ max_ack_pending: 10 }", "limits of consumers and streams"),
            Key("unique_tag", '"az:"', "where copies are placed"),
            Key("max_outstanding_catchup", "1MB", "how copies catch up"),
            Key("max_buffered_size", "1MB", "the limit of queued publishes"),
            Key("max_buffered_msgs", "1000", "the limit of queued publishes"),
            Key("request_queue_limit", "1000", "the limit of queued requests"),
            Key("info_queue_limit", "1000", "the limit of queued information requests", checked=False),
            Key("extension_hint", "will_extend", "how a leaf node extends a cluster"),
            Key("meta_compact", "100", "compaction of the cluster's own log", checked=False),
            Key("meta_compact_size", "1MB", "compaction of the cluster's own log", checked=False),
            Key("meta_compact_sync", "true", "compaction of the cluster's own log", checked=False),
        ),
    ),
    Section(
        "`limits` of `jetstream`",
        "jetstream { store_dir: STORE_DIR, limits { %s } }",
        (
            Key("max_ack_pending", "10", "the highest `max_ack_pending` of consumers"),
            Key("max_ha_assets", "10", "the number of replicated assets in a cluster"),
            Key("max_request_batch", "10", "the largest batch of a pull request"),
            Key("duplicate_window", '"1m"', "the longest duplicate window"),
            Key(
                "batch",
                "{ max_inflight_per_stream: 5, max_inflight_total: 10, max_msgs: 10, timeout: 5s }",
                "atomic batches",
            ),
        ),
    ),
    Section(
        "`batch` of `limits`",
        "jetstream { store_dir: STORE_DIR, limits { batch { %s } } }",
        (
            Key("max_inflight_per_stream", "5", "the maximum number of open batches of a stream"),
            Key("max_inflight_total", "10", "the maximum number of open batches of the server"),
            Key("max_msgs", "10", "the maximum number of messages of a batch"),
            Key("timeout", '"5s"', "the maximum time between two messages of a batch"),
        ),
    ),
    Section(
        "`resolver`",
        f"trusted_keys: [{TRUSTED_KEY}], resolver {{ type: full, dir: STORE_DIR, %s }}",
        (
            Key("type", "full", "`full` or `memory`; `cache` is refused", checked=False),
            Key("dir", "STORE_DIR", "the folder", checked=False),
            Key("allow_delete", "true", "accounts may be deleted by a request", checked=False),
            Key(
                "hard_delete", "true", "deleting an account also deletes its file", "allow_delete: true", checked=False
            ),
            Key("limit", "10", "the maximum number of accounts in the folder", checked=False),
            Key("interval", '"1m"', "how often servers exchange accounts", checked=False),
            Key("timeout", '"1s"', "the maximum time of a look-up", checked=False),
        ),
    ),
    Section(
        "`websocket`",
        'websocket { listen: "127.0.0.1:-1", no_tls: true, %s }',
        (
            Key("listen", '"127.0.0.1:-1"', "address and port"),
            Key("host, net", '"127.0.0.1"', "only the address"),
            Key("port", "8080", "only the port"),
            Key("advertise", '"example:443"', "the address advertised to clients"),
            Key("no_tls", "true", "allows connections without TLS"),
            Key("tls", f"{{ {CERT} }}", "TLS"),
            Key("same_origin", "true", "pages of the same host only"),
            Key(
                "allowed_origins, allowed_origin, allow_origins, origins, origin",
                '["https://example.com"]',
                "pages of these hosts only",
            ),
            Key("handshake_timeout", '"2s"', "the maximum time of the upgrade"),
            Key("compression", "true", "compresses messages"),
            Key("headers", "{ X-A: b }", "headers of the answer to an upgrade"),
            Key("user_cookie", "u", "the cookie with the user"),
            Key("pass_cookie", "p", "the cookie with the password"),
            Key("token_cookie", "t", "the cookie with the token"),
            Key("jwt_cookie", "j", "the cookie with the JWT", "", TRUSTING, checked=False),
            Key("no_auth_user", "a", "the user of clients without credentials", "", USERS),
            Key("authorization, authentication", "{ user: a, password: b }", "the only user"),
            Key("ping_interval", '"2m"', "the interval between pings", checked=False),
        ),
    ),
    Section(
        "`leafnodes`",
        'leafnodes { listen: "127.0.0.1:-1", %s }',
        (
            Key("listen", '"127.0.0.1:-1"', "address and port for leaf nodes"),
            Key("host, net", '"127.0.0.1"', "only the address"),
            Key("port", "7422", "only the port"),
            Key(
                "authorization", "{ user: a, password: b, account: A }", "users of leaf nodes", "", "accounts { A {} }"
            ),
            Key("tls", f"{{ {CERT} }}", "TLS"),
            Key("advertise", '"example:7422"', "the address advertised to leaf nodes"),
            Key("no_advertise", "true", "the addresses of other servers are not advertised"),
            Key("min_version", "2.8.0", "the oldest version of a leaf node"),
            Key("isolate_leafnode_interest, isolate", "true", "leaf nodes do not learn each other's interest"),
            Key("compression", '"off"', "S2"),
            Key("write_deadline", '"10s"', "the maximum time of a write"),
            Key("write_timeout", "close", "what happens when a write takes longer"),
            Key("reconnect, reconnect_delay, reconnect_interval", '"2s"', "the delay before a hub is dialled again"),
            Key("remotes", '[ { url: "nats://127.0.0.1:7422" } ]', "hubs"),
        ),
    ),
    Section(
        "`authorization` of `leafnodes`",
        'accounts { A {} }\nleafnodes { listen: "127.0.0.1:-1", authorization { %s } }',
        (
            Key("user, username", "a", "the only user", "password: b"),
            Key("password, pass", "b", "the password", "user: a"),
            Key("nkey", "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK", "the public key of the only user"),
            Key("account", "A", "the account of leaf nodes"),
            Key("users", "[ { user: a, password: b, account: A } ]", "users, each with its account"),
            Key("timeout", "2", "how long a leaf node may take to authenticate"),
            Key("proxy_required", "true", "leaf nodes must come through a trusted proxy", checked=False),
        ),
    ),
    Section(
        "An entry of `remotes`",
        'leafnodes { remotes [ { url: "nats://127.0.0.1:1", %s } ] }',
        (
            Key("url, urls", '"nats://127.0.0.1:2"', "where the hub listens"),
            Key("account, local", '"$G"', "the account here"),
            Key("credentials, creds", '"CREDENTIALS"', "a file with a JWT and its seed"),
            Key("nkey, seed", '"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"', "a seed"),
            Key("tls", f"{{ {CA} }}", "TLS"),
            Key("hub", "true", "this server is the hub"),
            Key("deny_imports, deny_import", '["a"]', "what does not come in"),
            Key("deny_exports, deny_export", '["a"]', "what does not go out"),
            Key("no_randomize, dont_randomize", "true", "the URLs are tried in their order"),
            Key("ignore_discovered_servers", "true", "only these URLs are dialled"),
            Key("dial_timeout", '"1s"', "how long a dial may take", checked=False),
            Key("first_info_timeout", '"1s"', "how long the hub may be silent"),
            Key("disabled", "true", "it is not dialled"),
            Key("compression", '"off"', "S2"),
            Key(
                "isolate_leafnode_interest, isolate",
                "true",
                "this server hears nothing of other leaf nodes",
                checked=False,
            ),
            Key("request_isolation", "true", "the same, asked of the hub", checked=False),
            Key("proxy", '{ url: "http://127.0.0.1:1" }', "an HTTP proxy", checked=False),
            Key("ws_compression, ws_compress", "true", "of WebSocket"),
            Key("ws_no_masking", "true", "of WebSocket"),
            Key("jetstream_cluster_migrate, js_cluster_migrate", "true", "leaders of a cluster move"),
        ),
    ),
)


def configuration_of(section: Section, key: Key, name: str, folder: Path) -> str:
    """Return a file that says nothing but this key, and what it needs."""
    inner = f"{key.beside}, {name}: {key.value}" if key.beside else f"{name}: {key.value}"
    text = section.frame % inner
    # A later key of the same name would win: what the frame says of it goes.
    if section.frame != "%s":
        text = re.sub(rf'(?<![\w"]){re.escape(name)}: [^,{{}}\[\]]+, (?=.*(?<![\w"]){re.escape(name)}: )', "", text)
    text = f"{text}\n{key.around}\n"
    for word, path in (("STORE_DIR", "store"), ("LOG_FILE", "log"), ("PID_FILE", "pid"), ("CREDENTIALS", "creds")):
        text = text.replace(f'"{word}"', word).replace(word, f'"{folder / path}"')
    return text


def outcome_of(section: Section, key: Key) -> Outcome:
    """Ask the reader of configuration files what it makes of a key; the words are its own."""
    name = key.names.split(",")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.conf"
        path.write_text(configuration_of(section, key, name, Path(folder)))
        try:
            found = assemble({"config": str(path)})
        except JetlakeError as error:
            reason = re.search(r"\w+ is not supported: (.*)", str(error))
            if reason is None:
                raise ValueError(f"{section.title} {name}: {error}") from None
            return Outcome("refused", reason[1])
        for warning in found.warnings:
            reason = re.search(rf"{re.escape(name)} is ignored: (.*)", warning)
            if reason is not None:
                return Outcome("ignored", reason[1])
        return Outcome("works", "")


if __name__ == "__main__":
    for section in SECTIONS:
        for key in section.keys:
            try:
                print(section.title, key.names, *outcome_of(section, key), sep=" | ")
            except ValueError as error:
                print("!!", error, file=sys.stderr)
