"""Operator mode: JWTs of operators, accounts and users as nsc makes them, made here without the package's own code."""

import base64
import hashlib
import json
import time

import nkeys

from tests.support.clients import key

UNLIMITED = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
FREE = {"subs": -1, "data": -1, "payload": -1}


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(issuer, subject, name, claims, head=None, version=2, iat=None, **fields):
    """A JWT as the server reads them: the claims, signed by the issuer's key."""
    head = encoded(json.dumps(head or {"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = {
        "iat": int(time.time()) if iat is None else iat,
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": version},
        **fields,
    }
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).rstrip(b"=").decode()
    text = f"{head}.{encoded(json.dumps(body).encode())}"
    return f"{text}.{encoded(issuer.sign(text.encode()))}"


def creds_text(jwt, seed):
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


VIOLATION = b"-ERR 'Authorization Violation'"


class Key:
    """A key with the texts of both halves."""

    def __init__(self, prefix, number):
        self.pair, self.seed = key(prefix, number)
        self.public = self.pair.public_key.decode()

    def signature(self, nonce):
        return encoded(self.pair.sign(nonce.encode()))


class Realm:
    """An operator with accounts and users; every key is made of a number, and the time may be the test's own."""

    def __init__(self, clock=None):
        self._clock = clock
        self._number = 20
        self.operator = Key(nkeys.PREFIX_BYTE_OPERATOR, 1)
        self.system = Key(nkeys.PREFIX_BYTE_ACCOUNT, 3)
        self.accounts = {}
        self.account(self.system, "SYS")
        self._signed_s = self.now()

    def now(self):
        manual = getattr(self._clock, "manual", None)
        return manual.now_ns() // 1_000_000_000 if manual is not None else int(time.time())

    def key(self, prefix):
        self._number += 1
        return Key(prefix, self._number)

    def new_account(self, name="team", **claims):
        pair = self.key(nkeys.PREFIX_BYTE_ACCOUNT)
        self.account(pair, name, **claims)
        return pair

    def account(self, pair, name="team", *, signer=None, limits=None, exp=0, iat=None, **claims):
        """Sign an account, and have it in the configuration from now on."""
        self.accounts[pair.public] = jwt = token(
            (signer or self.operator).pair,
            pair.public,
            name,
            {"limits": {**UNLIMITED, **(limits or {})}, "type": "account", **claims},
            iat=self.now() if iat is None else iat,
            **({"exp": exp} if exp else {}),
        )
        return jwt

    def user(self, account, name="worker", *, signer=None, free=True, exp=0, nbf=0, iat=None, **claims):
        """A new user: its JWT and its key; `free` = without limits of its own."""
        pair = self.key(nkeys.PREFIX_BYTE_USER)
        return self.user_of(pair, account, name, signer=signer, free=free, exp=exp, nbf=nbf, iat=iat, **claims), pair

    def user_of(self, pair, account, name="worker", *, signer=None, free=True, exp=0, nbf=0, iat=None, **claims):
        return token(
            (signer or account).pair,
            pair.public,
            name,
            {
                "type": "user",
                **(FREE if free else {}),
                **({"issuer_account": account.public} if signer is not None else {}),
                **claims,
            },
            iat=self.now() if iat is None else iat,
            **({"exp": exp} if exp else {}),
            **({"nbf": nbf} if nbf else {}),
        )

    def operator_token(self, **claims):
        # Signed once: nats-server reloads no configuration whose operator has changed.
        return token(
            self.operator.pair, self.operator.public, "operator", {"type": "operator", **claims}, iat=self._signed_s
        )

    def config(self, resolver="MEMORY", operator=None, more=""):
        preload = "\n".join(f"{name}: {jwt}" for name, jwt in self.accounts.items())
        return f"""
            operator: {operator or self.operator_token()}
            system_account: {self.system.public}
            resolver: {resolver}
            resolver_preload: {{ {preload} }}
            {more}
        """


def operator_mode(payload_bytes_max=-1):
    """The configuration of a server in operator mode, and the text of a creds file that it takes.

    The JWT of the user limits payloads; to nothing by default.
    """
    realm = Realm()
    jwt, user = realm.user(realm.new_account(), payload=payload_bytes_max)
    return realm.config(), creds_text(jwt, user.seed)


def login(wire, jwt, pair=None):
    """The options of CONNECT for a token, with the signature of its key."""
    return {"jwt": jwt, **({"sig": pair.signature(wire.info["nonce"])} if pair is not None else {})}


async def enter(connect, server, jwt, pair=None, **options):
    wire = await connect(server)
    return await wire.hello(**login(wire, jwt, pair), **options)


async def is_let_in(connect, server, jwt, pair=None, **more):
    wire = await connect(server)
    options = {"verbose": False, "pedantic": False, **login(wire, jwt, pair), **more}
    await wire.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    line = await wire.line()
    assert line in (b"PONG", VIOLATION)
    return line == b"PONG"
