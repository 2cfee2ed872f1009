"""Which user a certificate names."""

import pytest

from jetlake.server.shell.access.certificate import Certificate

FIELDS = {
    "subject": ((("organizationName", "Acme, Inc."),), (("organizationalUnitName", "eng"),), (("commonName", "www"),)),
    "subjectAltName": (("URI", "spiffe://acme/www"), ("DNS", "www.acme.org"), ("email", "www@acme.org")),
}


@pytest.mark.parametrize(
    ("users", "found"),
    [
        (["spiffe://acme/www", "www.acme.org", "www@acme.org"], "www@acme.org"),
        (["spiffe://acme/www", "www.acme.org"], "www.acme.org"),
        (["spiffe://acme/www", "other"], "spiffe://acme/www"),
        (["CN=www,OU=eng,O=Acme\\, Inc."], "CN=www,OU=eng,O=Acme\\, Inc."),
        (["o=Acme\\, Inc., ou=eng, cn=www"], "o=Acme\\, Inc., ou=eng, cn=www"),
        (["CN=www"], None),
        (["www"], None),
        ([], None),
    ],
)
def test_users(users, found):
    assert Certificate(FIELDS).find_user(users) == found


def test_a_certificate_without_names_names_nobody():
    assert Certificate({}).find_user(["", "=", "CN="]) is None
