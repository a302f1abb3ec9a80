"""Slides at a DICOMweb server (an archive): which it has, their tiles, and results stored beside them.

A slide there is a small file here, NAME.dicomweb (JSON: url, study, series), which opens like any other.
Tiles are asked for in the transfer syntax that they are stored in: a server that may choose sends copies that
were compressed anew.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metaphase.base.errors import MetaphaseError, SlideError, UsageError
from metaphase.base.files import explained, write_text
from metaphase.base.foreign import (
    RAISE_LIMITS,
    described,
    is_file,
    library,
    parsing,
    printable,
    raised,
    read_json,
)
from metaphase.base.remote import waiting
from metaphase.slides import dicom
from metaphase.slides.contract import Slide

SUFFIX = ".dicomweb"
AUTHORISATION = "METAPHASE_DICOMWEB_AUTH"
"""Environment setting: a server's address, a space, and what its header `Authorization` says."""
LET_IN = f"name its user in ~/.netrc, or set {AUTHORISATION} to 'URL Bearer TOKEN'"
FIND = "make it with metaphase archive find"
TIMEOUT_S = 30.0
RETRIES = 2
MAX_ANSWER_BYTES = 512_000_000
PIXELS, STORED = "7FE00010", "1.2.840.10008.1.2.1"
AS_STORED = 'multipart/related; type="application/octet-stream"; transfer-syntax=*'
_ADDRESS = re.compile(r"https?://[^/\s]")
_UID = re.compile(r"[0-9]+(\.[0-9]+)*")
_SYNTAX = re.compile(r"transfer-syntax=\"?([0-9.]+)")
_STUDY_AND_SERIES = ("0020000D", "0020000E")
PAGE = 500


@dataclass(frozen=True)
class RemoteSlide:
    """Address of a slide at a DICOMweb server."""

    url: str
    """The server's address, to which `/studies` is added."""
    study: str
    series: str

    def __post_init__(self) -> None:
        if not _ADDRESS.match(self.url):
            raise ValueError(f"{printable(self.url)[:80]!r} is not an address: http://... or https://...")
        for uid in (self.study, self.series):
            if not _UID.fullmatch(uid) or len(uid) > 64:
                raise ValueError(f"{printable(uid)[:80]!r} is not a UID")


def is_remote(path: Path) -> bool:
    """Whether a file names a slide at a server."""
    return path.suffix.lower() == SUFFIX and is_file(path)


def read_remote(path: Path) -> RemoteSlide:
    """What such a file names."""
    stated = read_json(path, "names no slide at a server", next_step=FIND, error=SlideError)
    with parsing(path, "names no slide at a server", next_step=FIND, error=SlideError):
        return RemoteSlide(*(str(stated[name]) for name in ("url", "study", "series")))


def open_remote(path: Path, mpp: float | None) -> Slide:
    """The slide that a file names, read tile by tile from its server."""
    remote = read_remote(path)
    archive = Archive(remote.url)
    wsidicom = _needed("wsidicom")
    named = [str(uid) for uid in _needed("pydicom.uid").AllTransferSyntaxes]  # of these it takes what it can
    with archive.asking(f"the slide of series {remote.series}"):
        handle = wsidicom.WsiDicom.open_web(
            archive.tiles(), remote.study, remote.series, requested_transfer_syntax=named
        )
    return dicom.DicomSlide(handle, mpp, path)


def source_image(path: Path) -> Any:
    """Header of a slide's finest level, to which results refer: from its files or from its server."""
    if not is_remote(path):
        return dicom.source_image(path)
    remote = read_remote(path)
    return dicom.finest(Archive(remote.url).headers(remote.study, remote.series), path)


def find_slides(
    url: str, folder: Path, *, patient: str | None = None, study: str | None = None
) -> list[tuple[Path, RemoteSlide]]:
    """Write a file for each slide that a server has; those of one patient or study where it is named.

    Series of microscopy without a pyramid (single fields, labels) are passed over.
    """
    archive = Archive(url)
    named = [(remote, archive.name_of(remote)) for remote in archive.slides(patient=patient, study=study)]
    names = Counter(name for _, name in named)
    files = []
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for remote, name in named:
        if name is not None:
            stem = name if names[name] == 1 else f"{name}-{remote.series}"
            files.append((folder / f"{stem}{SUFFIX}", remote))
            write_text(files[-1][0], json.dumps(asdict(remote), indent=2) + "\n")
    return files


def store_results(url: str, results: Iterable[Path]) -> list[Path]:
    """Store DICOM results at a server, files or those of folders of results; the files that were stored."""
    files: list[Path] = []
    for path in results:
        inside = sorted({*path.glob("*.dcm"), *path.glob("*/*.dcm")}) if path.is_dir() else [path]
        if not inside:
            raise UsageError(
                f"{path} holds no DICOM results", next_step="metaphase detect SLIDE -o DIR --format dicom"
            )
        files += inside
    archive = Archive(url)
    for file in files:
        archive.store(file)
    return files


# ---- the server ----


class Archive:
    """A DICOMweb server: QIDO-RS, WADO-RS and STOW-RS below one address."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not _ADDRESS.match(url):
            raise UsageError(f"{url!r} is not an address", next_step="give http://... or https://...")
        self._session = _session(self.url)
        self._client = _needed("dicomweb_client").DICOMwebClient(self.url, session=self._session)
        self._client.set_http_retry_params(retry=False)
        self._stored: dict[str, str] = {}

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside is an answer of the server, and reported in one line."""
        requests = _needed("requests")
        try:
            yield
        except MetaphaseError:
            raise
        except Exception as error:
            match error:
                case requests.HTTPError(response=response):
                    status = f"{response.status_code} {response.reason}"
                    problem, step = f"answered {status}", "try again later, or ask who runs it"
                    if response.status_code in (401, 403):
                        problem, step = f"denies access ({status})", LET_IN
                    elif response.status_code == 404:
                        problem, step = f"does not have it ({status})", "check the address and the UIDs"
                case requests.Timeout():
                    problem, step = f"did not answer within {TIMEOUT_S:g} s", "try again later"
                case requests.ConnectionError():
                    problem, step = "cannot be reached", "check its address and the network"
                case _:
                    problem = f"gave an answer that cannot be used ({described(error)})"
                    step = "check that the address is that of a DICOMweb service"
            raise SlideError(f"{self.url} was asked for {what} and {problem}", next_step=step) from error

    def slides(self, *, patient: str | None = None, study: str | None = None) -> list[RemoteSlide]:
        """The series of slides that it has."""
        filters = {"Modality": "SM"} | ({"PatientID": patient} if patient else {})
        slides: dict[RemoteSlide, None] = {}
        with self.asking("its slides"):
            while True:
                page = self._client.search_for_series(
                    study_instance_uid=study, search_filters=filters, limit=PAGE, offset=len(slides)
                )
                more = [
                    RemoteSlide(self.url, *(series[tag]["Value"][0] for tag in _STUDY_AND_SERIES))
                    for series in page
                ]
                if slides.keys() >= set(more):
                    return list(slides)
                slides |= dict.fromkeys(more)

    def headers(self, study: str, series: str) -> list[Any]:
        """What the instances of a series say of themselves."""
        with self.asking(f"the headers of series {series}"):
            return [header_of(header) for header in self._client.retrieve_series_metadata(study, series)]

    def name_of(self, remote: RemoteSlide) -> str | None:
        """What is written on the glass, or the series where nothing is stated; None for what is no slide."""
        headers = self.headers(remote.study, remote.series)
        try:
            header = dicom.finest(headers, Path(remote.series))
        except SlideError:
            return None
        stated = re.sub(r"[^\w.-]+", "_", str(header.get("ContainerIdentifier") or ""))
        return stated.strip("._")[:80] or remote.series

    def tiles(self) -> Any:
        """What wsidicom asks for tiles."""
        return _tiles_client()(self, self._client)

    def store(self, file: Path) -> None:
        """Store one object; one that is there already is left as it is."""
        pydicom = _needed("pydicom")
        with parsing(file, "no DICOM file", next_step="name a result that is one", error=SlideError):
            dataset = pydicom.dcmread(file)
        with self.asking(f"storing {file}"):
            answer = self._client.store_instances([dataset])
            for failed in answer.get("FailedSOPSequence") or ():
                raise ValueError(f"not stored, reason {failed.get('FailureReason', 0)}")
            stored = answer.get("ReferencedSOPSequence") or ()
            if dataset.SOPInstanceUID not in [known.ReferencedSOPInstanceUID for known in stored]:
                raise ValueError("it does not confirm that the object is stored")

    def stored_syntax(self, study: str, series: str, instance: str) -> str:
        """The transfer syntax in which an instance's frames come when they are not changed."""
        if instance not in self._stored:
            self._stored[instance] = self.frames(study, series, instance, [1])[0]
        return self._stored[instance]

    def frames(
        self, study: str, series: str, instance: str, numbers: Sequence[int]
    ) -> tuple[str, list[bytes]]:
        """Frames, counted from 1, and the transfer syntax that they are in."""
        listed = ",".join(map(str, numbers))
        address = f"{self.url}/studies/{study}/series/{series}/instances/{instance}/frames/{listed}"
        with self.asking(f"tiles of instance {instance}"):
            answer = self._session.get(address, headers={"Accept": AS_STORED})
            answer.raise_for_status()
            syntax, frames = parts_of(answer.headers.get("Content-Type", ""), answer.content)
            if len(frames) != len(numbers):
                raise ValueError(f"{len(frames)} tiles for {len(numbers)}")
            return syntax, frames


def header_of(stated: dict[str, Any]) -> Any:
    """An instance's header from DICOM JSON, without pixels and what else lies elsewhere."""
    pydicom = _needed("pydicom")
    stated = {tag: element for tag, element in stated.items() if tag != PIXELS}
    return pydicom.Dataset.from_json(stated, bulk_data_uri_handler=lambda *_: b"")


def parts_of(kind: str, body: bytes) -> tuple[str, list[bytes]]:
    """Transfer syntax and parts of an answer of this Content-Type: one part, or several by a boundary."""
    main, syntax = kind.partition(";")[0].strip().lower(), _SYNTAX.search(kind)
    boundary = re.search(r'boundary="?([^";\s]+)', kind)
    if main == "application/octet-stream" or main.startswith("image/"):
        parts = [body]
    elif main == "multipart/related" and boundary:
        parts = []
        for part in body.split(b"--" + boundary[1].encode())[1:-1]:
            head, parted, content = part.partition(b"\r\n\r\n")
            if not parted:
                raise ValueError("a part without headers")
            syntax = _SYNTAX.search(head.decode("latin-1")) or syntax
            parts.append(content.removesuffix(b"\r\n"))
    else:
        raise ValueError(f"of type {printable(kind)[:60] or 'unknown'}, in place of tiles")
    return (syntax[1] if syntax else STORED), parts


# ---- how it is asked ----


def _session(url: str) -> Any:
    """Connections with limits on time and size; the user's authorisation goes to its own server only."""
    requests, adapters = _needed("requests"), _needed("requests.adapters")
    retry = _needed("urllib3").Retry(
        total=None,
        connect=RETRIES,
        read=False,
        status=RETRIES,
        redirect=RETRIES,
        backoff_factor=0.2,
        status_forcelist=(429, 502, 503, 504),
        raise_on_status=False,
    )

    class Bounded(adapters.HTTPAdapter):  # type: ignore[misc, name-defined]
        """Waits no longer than a while, and takes no answer that says it is huge."""

        def send(self, request: Any, **options: Any) -> Any:
            with waiting(url, TIMEOUT_S):
                response = super().send(request, **{**options, "timeout": TIMEOUT_S})
            if int(response.headers.get("Content-Length") or 0) > raised(MAX_ANSWER_BYTES):
                response.close()
                raise SlideError(f"{url} sends more than can be taken", next_step=RAISE_LIMITS)
            return response

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, Bounded(max_retries=retry))
    address, _, says = os.environ.get(AUTHORISATION, "").strip().partition(" ")
    if says and (url + "/").startswith(address.rstrip("/") + "/"):
        session.headers["Authorization"] = says.strip()
    return session


def _tiles_client() -> Any:
    """wsidicom's client, but for tiles as they are stored."""
    web = _needed("wsidicom")

    class Tiles(web.WsiDicomWebClient):  # type: ignore[misc, name-defined]
        """Answers wsidicom from an `Archive`."""

        def __init__(self, archive: Archive, client: Any) -> None:
            super().__init__(client)
            self._archive = archive

        def get_wsi_instances(self, *asked: Any) -> Iterator[tuple[Any, Any, None]]:
            for series, instance, _ in super().get_wsi_instances(*asked):
                yield series, instance, None

        def get_instance(self, study_uid: Any, series_uid: Any, instance_uid: Any) -> Any:
            return header_of(self._client.retrieve_instance_metadata(study_uid, series_uid, instance_uid))

        def get_frames(
            self, study: Any, series: Any, instance: Any, numbers: list[int], _syntax: Any
        ) -> Iterator[bytes]:
            return iter(self._archive.frames(study, series, instance, numbers)[1])

        def is_transfer_syntax_supported(self, study: Any, series: Any, instance: Any, syntax: Any) -> bool:
            return bool(syntax == self._archive.stored_syntax(study, series, instance))

    return Tiles


def _needed(name: str) -> Any:
    return library(name, "dicom", "a DICOMweb server needs", error=SlideError)
