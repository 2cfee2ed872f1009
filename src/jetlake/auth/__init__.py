"""Keys and tokens of operators, accounts and users, for servers, for services that let clients in, and for tools."""
