#!/bin/sh
# Makes the certificates of the TLS tests: a CA, a server for localhost, a client, and a client of another CA.
set -eu
cd "$(dirname "$0")"
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1-key.pem"; }
authority() {
    key "$1"
    openssl req -x509 -new -key "$1-key.pem" -out "$1.pem" -days 36500 -subj "/CN=jetlake test $1" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
}
signed() {
    key "$1"
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=%s\nkeyUsage=critical,digitalSignature\n' "$3" >"$1.ext"
    openssl req -new -key "$1-key.pem" -subj "/CN=$1" |
        openssl x509 -req -CA "$2.pem" -CAkey "$2-key.pem" -days 36500 -out "$1.pem" -extfile "$1.ext"
    rm -f "$1.ext"
}
authority ca
authority other-ca
signed server ca serverAuth
signed client ca clientAuth
signed other-client other-ca clientAuth
rm -f ./*.srl ca-key.pem other-ca-key.pem
