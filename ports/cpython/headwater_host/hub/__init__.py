"""The hub: the server of FMQ (docs/hub.md). One process, asyncio, one SQLite file.

Each part takes what it uses, as arguments or as narrow protocols. docs/architecture.md lists the modules; a contract in
pyproject.toml orders them.
"""
