"""Operator mode of nats-server: JWTs of an operator, an account and a user, and a creds file."""

import base64
import hashlib
import json
import time

import nkeys

from tests.support.clients import key


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(issuer, subject, name, claims):
    """A JWT as the server reads them: the claims, signed by the issuer's key."""
    head = encoded(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).rstrip(b"=").decode()
    text = f"{head}.{encoded(json.dumps(body).encode())}"
    return f"{text}.{encoded(issuer.sign(text.encode()))}"


def creds_text(jwt, seed):
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def operator_mode(payload_bytes_max=-1):
    """The configuration of a server in operator mode, and the text of a creds file that it takes.

    The JWT of the user limits payloads; to nothing by default.
    """
    operator, _ = key(nkeys.PREFIX_BYTE_OPERATOR, 1)
    account, _ = key(nkeys.PREFIX_BYTE_ACCOUNT, 2)
    system, _ = key(nkeys.PREFIX_BYTE_ACCOUNT, 3)
    user, user_seed = key(nkeys.PREFIX_BYTE_USER, 4)
    limits = {
        "limits": {
            "subs": -1,
            "data": -1,
            "payload": -1,
            "imports": -1,
            "exports": -1,
            "wildcards": True,
            "conn": -1,
            "leaf": -1,
        },
        "type": "account",
    }
    account_jwt = token(operator, account.public_key.decode(), "team", limits)
    system_jwt = token(operator, system.public_key.decode(), "system", limits)
    operator_jwt = token(operator, operator.public_key.decode(), "operator", {"type": "operator"})
    user_jwt = token(
        account,
        user.public_key.decode(),
        "worker",
        {"type": "user", "subs": -1, "data": -1, "payload": payload_bytes_max},
    )
    config = f"""
        operator: {operator_jwt}
        system_account: {system.public_key.decode()}
        resolver: MEMORY
        resolver_preload: {{
            {account.public_key.decode()}: {account_jwt}
            {system.public_key.decode()}: {system_jwt}
        }}
    """
    return config, creds_text(user_jwt, user_seed)
