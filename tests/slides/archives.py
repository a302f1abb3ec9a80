"""Two DICOMweb servers: Orthanc where it is installed, and a small one of pydicom that can also misbehave.

The small one answers QIDO-RS, WADO-RS (metadata, instances, frames as stored) and STOW-RS of PS3.18, no more.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pydicom
from pydicom.datadict import tag_for_keyword
from pydicom.encaps import generate_frames

PIXELS = "7FE00010"
ORTHANC = shutil.which("Orthanc", path="/usr/sbin:/usr/local/sbin") or shutil.which("Orthanc")


# ---- Orthanc ----


@contextmanager
def orthanc(folder: Path) -> Iterator[str]:
    """The address of an Orthanc with its DICOMweb plugin (Debian's orthanc and orthanc-dicomweb)."""
    assert ORTHANC is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "HttpPort": port, "DicomServerEnabled": False, "RemoteAccessAllowed": False,
        "StorageDirectory": str(folder), "IndexDirectory": str(folder), "AuthenticationEnabled": False,
        "Plugins": [str(Path(ORTHANC).parents[1] / "share" / "orthanc" / "plugins")],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
    }  # fmt: skip
    (folder / "orthanc.json").write_text(json.dumps(settings))
    command = [ORTHANC, str(folder / "orthanc.json")]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/system", server)
            yield f"http://127.0.0.1:{port}/dicom-web"
        finally:
            server.terminate()


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            assert server.poll() is None, "Orthanc did not start"
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(url)


# ---- the small one ----


class SmallServer(ThreadingHTTPServer):
    """Holds instances in memory; `fault` makes every answer a bad one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.instances: dict[str, pydicom.Dataset] = {}
        self.fault = ""
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/dicom-web"

    def matching(self, path: str, query: dict[str, list[str]]) -> list[pydicom.Dataset]:
        """Instances below a path that fit a query."""
        study, series = (re.search(rf"/{name}/([0-9.]+)", path) for name in ("studies", "series"))
        found = list(self.instances.values())
        for wanted, keyword in ((study, "StudyInstanceUID"), (series, "SeriesInstanceUID")):
            found = [one for one in found if wanted is None or one[keyword].value == wanted[1]]
        for key, values in query.items():
            tag = int(key, 16) if re.fullmatch("[0-9A-Fa-f]{8}", key) else tag_for_keyword(key)
            if tag is not None:
                found = [one for one in found if tag in one and str(one[tag].value) in ",".join(values)]
        return found


@contextmanager
def small_server() -> Iterator[SmallServer]:
    """A server in a thread."""
    with SmallServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: SmallServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        if self._misbehaves():
            return
        parts = urlsplit(self.path)
        found = self.server.matching(parts.path, parse_qs(parts.query))
        if frames := re.search(r"/instances/([0-9.]+)/frames/([0-9,]+)$", parts.path):
            self._frames(frames[1], [int(number) for number in frames[2].split(",")])
        elif whole := re.search(r"/instances/([0-9.]+)$", parts.path):
            self._whole(whole[1])
        elif parts.path.endswith("/metadata"):
            one = re.search(r"/instances/([0-9.]+)/", parts.path)
            self._json([_stated(each) for each in found if one is None or each.SOPInstanceUID == one[1]])
        else:
            level = parts.path.rpartition("/")[2]
            key = "SeriesInstanceUID" if level == "series" else "SOPInstanceUID"
            unique = {each[key].value: each for each in found}
            self._json([_stated(each) for each in unique.values()])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._misbehaves():
            return
        described: list[dict[str, Any]] = []
        boundary = re.search(r'boundary="?([^";\s]+)', self.headers["Content-Type"])
        for part in body.split(b"--" + boundary[1].encode())[1:-1]:  # type: ignore[index]
            data = part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            one = pydicom.dcmread(io.BytesIO(data))
            self.server.instances[one.SOPInstanceUID] = one
            described.append({"00081155": {"vr": "UI", "Value": [one.SOPInstanceUID]}})
        self._json({"00081199": {"vr": "SQ", "Value": described}})

    def _frames(self, instance: str, numbers: list[int]) -> None:
        one = self.server.instances[instance]
        syntax = one.file_meta.TransferSyntaxUID
        if f"transfer-syntax={syntax}" not in self.headers["Accept"] and "=*" not in self.headers["Accept"]:
            self._send(406, "text/plain", b"")
            return
        count, size = int(one.NumberOfFrames), one.Rows * one.Columns * one.SamplesPerPixel
        frames = (
            list(generate_frames(one.PixelData, number_of_frames=count))
            if syntax.is_encapsulated
            else [one.PixelData[at * size : (at + 1) * size] for at in range(count)]
        )
        head = f"\r\n--x\r\nContent-Type: application/octet-stream; transfer-syntax={syntax}\r\n\r\n".encode()
        body = b"".join(head + frames[number - 1] for number in numbers) + b"\r\n--x--"
        self._send(200, 'multipart/related; type="application/octet-stream"; boundary=x', body)

    def _whole(self, instance: str) -> None:
        file = io.BytesIO()
        self.server.instances[instance].save_as(file, enforce_file_format=True)
        body = b"\r\n--x\r\nContent-Type: application/dicom\r\n\r\n" + file.getvalue() + b"\r\n--x--"
        self._send(200, 'multipart/related; type="application/dicom"; boundary=x', body)

    def _misbehaves(self) -> bool:
        fault = self.server.fault
        if fault.isdigit():
            self._send(int(fault), "text/html", b"<h1>no</h1>")
        elif fault == "page":
            self._send(200, "text/html", b"<html>Sign in</html>")
        elif fault == "garbage":
            self._send(200, "application/dicom+json", b'[{"0020000D": 7}, ')
        elif fault == "silent":
            time.sleep(3)
        elif fault == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(10**12))
            self.end_headers()
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"[")
            self.close_connection = True
        return bool(fault)

    def _json(self, value: Any) -> None:
        self._send(200, "application/dicom+json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _stated(one: pydicom.Dataset) -> dict[str, Any]:
    """DICOM JSON, the pixels elsewhere."""
    pixels = (
        {PIXELS: {"vr": "OW", "BulkDataURI": "http://127.0.0.1:1/elsewhere"}} if "PixelData" in one else {}
    )
    rest = pydicom.Dataset({element.tag: element for element in one if element.tag != int(PIXELS, 16)})
    return {**rest.to_json_dict(), **pixels}
