"""The few file operations that pipelines need, on any file system that Spark can write to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from jetlake.errors import SparkError

# What has a meaning of its own in the paths that Spark reads.
_GLOB = re.compile(r"[][{}*?\\]")


def pattern_of(path: str) -> str:
    """Return the pattern that means a path alone, for Spark's readers."""
    return _GLOB.sub(r"\\\g<0>", path)


class FileSystem:
    """A folder, asked through Spark's own file system layer; paths are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        context = spark.sparkContext
        jvm = context._jvm
        assert jvm is not None
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._utilities = jvm.org.apache.hadoop.io.IOUtils
        self._bytes_out = jvm.java.io.ByteArrayOutputStream
        try:
            path = self._path_of(root)
            self._system = path.getFileSystem(context._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise SparkError(f"folder {root!r} can't be used: {error.java_exception.getMessage()}") from None
        self._root = self._system.makeQualified(path)
        self.root = str(self._root.toString())

    def parents(self) -> Iterator[FileSystem]:
        """Yield the folders that this one lies in, the nearest first."""
        parent = self._root.getParent()
        while parent is not None:
            yield FileSystem(self._spark, str(parent.toString()))
            parent = parent.getParent()

    def beside(self, root: str) -> FileSystem:
        """Return another folder."""
        return FileSystem(self._spark, root)

    def path(self, relative: str = "") -> str:
        """Return the whole path, for Spark's writers."""
        return f"{self.root}/{relative}" if relative else self.root

    def pattern(self, relative: str = "") -> str:
        """Return the pattern that means this path alone, for Spark's readers."""
        return pattern_of(self.path(relative))

    def _at(self, relative: str) -> Any:
        return self._path_of(self._root, relative) if relative else self._root

    def exists(self, relative: str = "") -> bool:
        """Return whether there is a file or folder."""
        return bool(self._system.exists(self._at(relative)))

    def is_file(self, relative: str = "") -> bool:
        """Return whether there is something, and no folder."""
        return self.exists(relative) and bool(self._system.getFileStatus(self._at(relative)).isFile())

    def modified_s(self, relative: str) -> float:
        """Return when a file was last written, seconds since 1970; 0 when there is none."""
        if not self.exists(relative):
            return 0.0
        return int(self._system.getFileStatus(self._at(relative)).getModificationTime()) / 1000

    def files(self, relative: str = "") -> dict[str, int]:
        """Return all files below a folder with their sizes, in order of their paths; none when it does not exist."""
        if not self.exists(relative):
            return {}
        found = {}
        prefix = len(self.root) + 1
        listing = self._system.listFiles(self._at(relative), True)
        while listing.hasNext():
            status = listing.next()
            found[str(status.getPath().toString())[prefix:]] = int(status.getLen())
        return dict(sorted(found.items()))

    def delete(self, relative: str) -> None:
        """Remove a file or a folder; one that is not there is no error."""
        self._system.delete(self._at(relative), True)

    def move(self, source: str, target: str) -> None:
        """Give a file another place on the same file system, over what is there."""
        place = self._at(target)
        self._system.mkdirs(place.getParent())
        self._system.delete(place, False)
        if not self._system.rename(self._at(source), place):
            raise SparkError(f"file {self.path(source)} could not be moved to {self.path(target)}")

    def read_json(self, relative: str) -> Any:
        """Return the value in a file; None when there is no such file.

        Raises:
            SparkError: the file is incomplete: its writer was killed, or the disk was full.
        """
        content = self.read(relative)
        try:
            return json.loads(content) if content is not None else None
        except ValueError as error:
            raise SparkError(f"file {self.path(relative)} is damaged: {error}") from None

    def read(self, relative: str) -> bytes | None:
        """Return the content of a file; None when there is no such file.

        Raises:
            SparkError: the file does not fit its checksum.
        """
        if not self.exists(relative):
            return None
        stream = self._system.open(self._at(relative))
        collected = self._bytes_out()
        try:
            self._utilities.copyBytes(stream, collected, 65536, True)
        except Py4JJavaError as error:
            if "ChecksumException" in str(error.java_exception.getClass().getName()):
                raise SparkError(f"file {self.path(relative)} is damaged: its checksum does not match") from None
            raise
        return bytes(collected.toByteArray())

    def create_json(self, relative: str, value: Any) -> bool:
        """Put the value into a file that does not exist yet; says whether it did not."""
        if self.exists(relative):
            return False
        try:
            self._write(relative, value, overwrite=False)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception.getClass().getName()):
                return False
            raise
        return True

    def overwrite_json(self, relative: str, value: Any) -> None:
        """Put the value into a file in place; a reader at this moment may find half of it."""
        self._write(relative, value, overwrite=True)

    def _write(self, relative: str, value: Any, *, overwrite: bool) -> None:
        stream = self._system.create(self._at(relative), overwrite)
        stream.write(bytearray(json.dumps(value, indent=1).encode()))
        stream.close()

    def write_json(self, relative: str, value: Any) -> None:
        """Put the value into a file, which afterwards has either the old or the new content."""
        aside = f"{relative}.new"
        self._write(aside, value, overwrite=True)
        self.move(aside, relative)
