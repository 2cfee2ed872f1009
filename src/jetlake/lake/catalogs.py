"""Catalogs of Iceberg tables, the embedded one and pyiceberg's, and the addresses of tables in them."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.errors import ConfigError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

CATALOG_FILE = "catalog.db"
"""The embedded catalog, in the folder that holds the folders of its tables."""
NAMESPACE = "lake"
"""The namespace of tables in the embedded catalog."""
_CATALOG = "jetlake"
_LOCK_WAIT_S = 20.0
_FILE_IO = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
# Other characters have a meaning in the locations that readers parse as URLs.
_UNSUITED = re.compile(r"[#?%\\]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def require_pyiceberg() -> None:
    """Make sure that the package is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import pyiceberg.catalog.sql
        import pyiceberg.io.pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError(
            "format iceberg needs the package pyiceberg; install it with: pip install 'jetlake[iceberg]'"
        ) from None


@dataclass(frozen=True)
class TableAddress:
    """Which table of which catalog, and where it lies.

    Attributes:
        folder: the table's location; the embedded catalog is in the folder above.
        catalog: the name of a catalog in pyiceberg's configuration; empty for the embedded one.
        table: the table's name with its namespace; empty for `lake.<name of the folder>`.

    Raises:
        ConfigError: a name or folder that cannot be used.
    """

    folder: str
    catalog: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        found = _UNSUITED.search(self.folder)
        if found is not None:
            raise ConfigError(
                f"an Iceberg table can't be written to {self.folder}, for its path holds {found[0]!r}: choose another "
                "folder"
            )
        if "://" in self.folder and not self.folder.startswith("file://") and not self.catalog:
            raise ConfigError(
                f"the embedded catalog is a local file, and {self.folder} is not local: name a catalog with --catalog"
            )
        if self.table and (not _NAME.fullmatch(self.table) or "." not in self.table.strip(".")):
            raise ConfigError(f"{self.table!r} is not a table name: write NAMESPACE.NAME, such as lake.orders")

    @property
    def identifier(self) -> tuple[str, ...]:
        """The namespace's parts and the name."""
        return tuple((self.table or f"{NAMESPACE}.{table_name(self.folder)}").split("."))

    @property
    def name(self) -> str:
        """The table's name with its namespace, for people."""
        return ".".join(self.identifier)

    @property
    def location(self) -> str:
        """Where the table lies, as its metadata says it."""
        folder = self.folder.rstrip("/")
        if "://" in folder:
            # Hadoop's name of the file system, and everybody else's.
            return re.sub(r"^s3[an]://", "s3://", folder)
        return f"file://{Path(folder).absolute()}"

    @property
    def catalog_file(self) -> Path:
        """The embedded catalog."""
        return Path(self.folder.removeprefix("file://")).absolute().parent / CATALOG_FILE

    def open_catalog(self) -> Catalog:
        """Return the catalog.

        Raises:
            ConfigError: pyiceberg knows no such catalog.
        """
        return open_catalog(self.catalog or self.catalog_file)


def table_name(folder: str) -> str:
    """Return the name of the table in a folder: its last part, with `_` for what names don't take."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", folder.rstrip("/").rpartition("/")[2]) or "table"
    return name if not name[0].isdigit() else f"_{name}"


def open_catalog(which: str | Path) -> Catalog:
    """Return a catalog: the one in a file, or the one that pyiceberg's configuration describes under a name.

    Raises:
        ConfigError: there is no such catalog, or it can't be reached.
    """
    require_pyiceberg()
    import sqlite3

    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    if isinstance(which, Path):
        which.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Refuses what is no database, which a SqlCatalog that fails would keep open.
            with closing(sqlite3.connect(which, timeout=_LOCK_WAIT_S)) as file:
                file.execute("PRAGMA schema_version")
            return _without_pool(
                SqlCatalog(_CATALOG, uri=f"sqlite:///{which}", warehouse=f"file://{which.parent}", **_FILE_IO)
            )
        except Exception as error:
            raise ConfigError(f"the catalog {which} can't be opened: {first_line(error)}") from None
    try:
        return _without_pool(load_catalog(which, **_FILE_IO))
    # pyiceberg, SQLAlchemy and the HTTP client each have errors of their own.
    except Exception as error:
        raise ConfigError(
            f"catalog {which!r} can't be opened: {first_line(error)}. Describe it in ~/.pyiceberg.yaml, or by "
            f"PYICEBERG_CATALOG__{which.upper()}__URI"
        ) from None


def _without_pool(catalog: Catalog) -> Catalog:
    """Return a catalog; one in a SQLite file waits for other processes, and has the file open only while it is used."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import NullPool, create_engine

    if isinstance(catalog, SqlCatalog):
        url = catalog.engine.url
        if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
            # A pool's connections would stay open until they are garbage-collected, of which Python 3.13 warns.
            catalog.engine.dispose()
            catalog.engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _LOCK_WAIT_S})
    return catalog


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or what kind of error it is."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
