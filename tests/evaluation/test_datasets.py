"""Adapters: real folders where they are, else files written to the published descriptions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError, read_manifest
from metaphase.evaluation.datasets import ADAPTERS, import_dataset, read_dataset
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.evaluation.tuning import tune_mitoses
from tests.detections.published import AREA, Drawn, write_database
from tests.detections.test_reading import write_sliderunner


def write_image(path: Path, width: int = 64, height: int = 48) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), 200, np.uint8)).save(path)
    return path


def points(folder: Path, name: str) -> list[list[object]]:
    return read_dataset(name, folder).truth.table[["slide", "x", "y", "label"]].to_numpy().tolist()


def test_tupac_auxiliary_lines_are_row_and_column(tmp_path: Path) -> None:
    write_image(tmp_path / "mitoses_image_data_part_1/01/01.tif")
    write_image(tmp_path / "mitoses_image_data_part_3/50/02.tif")
    (tmp_path / "mitoses_ground_truth/01").mkdir(parents=True)
    (tmp_path / "mitoses_ground_truth/01/01.csv").write_text("7,30\n40,2\n")
    dataset = read_dataset("tupac-aux", tmp_path)
    assert dataset.manifest["case"].tolist() == ["tupac-aux/01/01", "tupac-aux/50/02"]
    assert dataset.manifest["laboratory"].tolist() == ["UMC Utrecht", "centre 3"]
    assert dataset.manifest["patient"].tolist() == ["tupac-aux/01", "tupac-aux/50"]
    assert dataset.truth.slides == ("tupac-aux/01/01", "tupac-aux/50/02")
    assert dataset.truth.table[["x", "y"]].to_numpy().tolist() == [[30, 7], [2, 40]]


def test_files_that_lie_in_the_working_directory_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("01/02.tif", "fields/A00_00.bmp"):
        write_image(tmp_path / name)
    (tmp_path / "01/02.csv").write_text("7,30\n")
    (tmp_path / "fields/A00_00.csv").write_text("10,20\n")
    monkeypatch.chdir(tmp_path)
    assert points(Path(), "tupac-aux") == [["tupac-aux/01/02", 30, 7, "mitosis"]]
    monkeypatch.chdir(tmp_path / "fields")
    assert points(Path(), "icpr2012") == [["icpr2012/A00_00", 10, 20, "mitosis"]]


def write_alternative(folder: Path, *regions: str) -> None:
    """The alternative labels as published: a file a region and label, empty where there is nothing."""
    for region in regions:
        for part, text in (("mitoses", "1,2\n"), ("nonmitoses", "3,4\n5,6\n" if region == "07/03" else "")):
            path = folder / "TUPAC_AL" / f"{part}_ground_truth" / f"{region}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def test_tupac_alternative_labels(tmp_path: Path) -> None:
    write_alternative(tmp_path, "07/03", "24/01")
    assert points(tmp_path, "tupac-alternative") == [
        ["tupac-alternative/07/03", 2, 1, "mitosis"],
        ["tupac-alternative/24/01", 2, 1, "mitosis"],
        ["tupac-alternative/07/03", 4, 3, "lookalike"],
        ["tupac-alternative/07/03", 6, 5, "lookalike"],
    ]
    dataset = read_dataset("tupac-alternative", tmp_path)
    assert dataset.warnings == ()
    assert dataset.manifest["patient"].tolist() == ["tupac-aux/07", "tupac-aux/24"]


def test_tupac_alternative_labels_of_a_database_of_regions(tmp_path: Path) -> None:
    write_image(tmp_path / "mitoses_image_data_part_1/05/01.tif")
    write_image(tmp_path / "mitoses_image_data_part_1/07/01.tif")
    folder = "/data/tupac/mitoses_image_data_part_1"
    slides = [("01.tif", f"{folder}/05"), ("01.tif", f"{folder}/24/"), ("67.tif", "D:\\tupac\\05")]
    drawn = [Drawn(1, [(10, 20)]), Drawn(2, [(30, 40)], 2), Drawn(3, [(50, 60)])]
    write_database(tmp_path / "TUPAC_alternativeLabels_training.sqlite", slides, drawn)
    dataset = read_dataset("tupac-alternative", tmp_path)
    assert dataset.truth.table[["slide", "x", "y", "label"]].to_numpy().tolist() == [
        ["tupac-alternative/05/01", 10, 20, "mitosis"],
        ["tupac-alternative/24/01", 30, 40, "lookalike"],
        ["tupac-alternative/05/67", 50, 60, "mitosis"],
    ]
    assert dataset.warnings == ()
    manifest = dataset.manifest.set_index("case")
    assert [Path(path).parts[-2:] for path in manifest["he"] if path] == [("05", "01.tif")]
    assert manifest["patient"].tolist() == ["tupac-aux/05", "tupac-aux/05", "tupac-aux/24"]
    assert manifest["mpp"].tolist() == [0.25] * 3
    assert manifest["laboratory"].tolist() == ["UMC Utrecht", "UMC Utrecht", "centre 2"]
    assert manifest["scanner"].tolist() == ["Aperio ScanScope XT"] * 2 + ["Leica SCN400"]


def test_tupac_alternative_labels_of_the_database_of_stitched_cases(tmp_path: Path) -> None:
    """Cases 1 to 23 have many regions, stitched to one image; the others have one, under their number."""
    write_image(tmp_path / "part_1/05/24.tif")  # a region of case 5, not case 24
    slides = [("05_stitched1.tif", "stitched/"), ("24.tif", "stitched/")]
    path = write_database(tmp_path / "d.sqlite", slides, [Drawn(1, [(7000, 20)]), Drawn(2, [(30, 40)])])
    dataset = read_dataset("tupac-alternative", path)
    assert points(path, "tupac-alternative") == [
        ["tupac-alternative/05_stitched1", 7000, 20, "mitosis"],
        ["tupac-alternative/24/01", 30, 40, "mitosis"],
    ]
    assert dataset.manifest["patient"].tolist() == ["tupac-aux/05", "tupac-aux/24"]
    assert dataset.manifest["he"].tolist() == ["", ""]


@pytest.mark.parametrize(
    ("slides", "message"),
    [
        ([("a.svs", "")], "slide a.svs is neither a region"),
        ([("05.tif", "stitched")], "slide 05.tif is neither a region"),
        ([("01.tif", "p_1/05"), ("01.tif", "p_2/05")], "slide p_2/05/01.tif is there twice"),
    ],
)
def test_tupac_alternative_labels_of_other_databases(
    tmp_path: Path, slides: list[tuple[str, str]], message: str
) -> None:
    path = write_database(tmp_path / "d.sqlite", slides, [])
    with pytest.raises(TableError, match=f"{message}.*metaphase data import sliderunner"):
        read_dataset("tupac-alternative", path)


def test_original_and_alternative_labels_of_one_folder_are_not_mixed(tmp_path: Path) -> None:
    write_alternative(tmp_path, "07/03")
    (tmp_path / "mitoses_ground_truth/07").mkdir(parents=True)
    (tmp_path / "mitoses_ground_truth/07/03.csv").write_text("8,9\n")
    for name in ("tupac-aux", "tupac-alternative"):
        with pytest.raises(TableError, match=r"07/03 has labels here and in .*Keep one set"):
            read_dataset(name, tmp_path)


def test_original_and_alternative_labels_in_one_evaluation(tmp_path: Path) -> None:
    """Cases differ, so that the manifests can be joined; patients do not, so that tuning is noticed."""
    for folder, name in (("a", "tupac-aux"), ("b", "tupac-alternative")):
        write_alternative(tmp_path / folder, "24/01", "30/01")
        import_dataset(name, tmp_path / folder, tmp_path / name)
    both = [read_manifest(tmp_path / name / "manifest.csv") for name in ("tupac-aux", "tupac-alternative")]
    assert not set(both[0]["case"]) & set(both[1]["case"])
    assert both[0]["patient"].tolist() == both[1]["patient"].tolist()
    for slides in (["24/01", "30/01"], ["24/01.tif", "30/01.tif"], list(both[0]["case"])):
        table = pd.DataFrame({"slide": slides, "x": 2, "y": 1, "probability": 0.9})
        table.to_csv(tmp_path / "p.csv", index=False)
        result = evaluate_mitoses(
            tmp_path / "tupac-alternative", tmp_path / "p.csv", bootstrap=BootstrapConfig(samples=0)
        )
        assert (result.overall.true, result.overall.false) == (2, 0)
    tune_mitoses(tmp_path / "tupac-aux", tmp_path / "p.csv", tmp_path / "card.json")
    with pytest.raises(UsageError, match="2 slides were used to tune"):
        evaluate_mitoses(tmp_path / "tupac-alternative", tmp_path / "p.csv", card=tmp_path / "card.json")


def test_tupac_auxiliary_of_the_paper_has_cases_24_to_73(tmp_path: Path) -> None:
    for case in range(1, 74):
        (tmp_path / f"mitoses_ground_truth/{case:02}").mkdir(parents=True)
        (tmp_path / f"mitoses_ground_truth/{case:02}/01.csv").write_text("7,30\n")
    write_image(tmp_path / "part/73/01.tif")
    dataset = read_dataset("tupac-aux-paper", tmp_path)
    assert len(dataset.manifest) == len(dataset.truth.table) == len(dataset.truth.slides) == 50
    assert dataset.manifest["case"].iloc[[0, -1]].tolist() == ["tupac-aux/24/01", "tupac-aux/73/01"]
    assert set(dataset.manifest["laboratory"]) == {"centre 2", "centre 3"}
    assert dataset.warnings == ()
    assert len(read_dataset("tupac-aux", tmp_path).manifest) == 73
    (tmp_path / "mitoses_ground_truth/30/01.csv").unlink()
    (warning,) = read_dataset("tupac-aux-paper", tmp_path).warnings
    assert "1 of the paper's 50 cases are not there: tupac-aux/30" in str(warning)


def test_tupac_slides_take_their_line_number_as_name(tmp_path: Path) -> None:
    (tmp_path / "training_ground_truth.csv").write_text("3,0.25\n1,-0.5\n2,0.1\n")
    dataset = read_dataset("tupac", tmp_path)
    assert dataset.manifest["case"].tolist() == ["TUPAC-TR-001", "TUPAC-TR-002", "TUPAC-TR-003"]
    assert dataset.manifest["grade"].tolist() == [3, 1, 2]
    assert dataset.manifest["proliferation"].tolist() == [0.25, -0.5, 0.1]
    (tmp_path / "TUPAC-TR-002.svs").touch()
    dataset = read_dataset("tupac", tmp_path)
    assert dataset.manifest["case"].tolist() == ["TUPAC-TR-002"]
    assert dataset.manifest["laboratory"].tolist() == ["TCGA"]
    assert "2 slides" in str(dataset.warnings[0])


def midog_json(folder: Path, box: list[float]) -> Path:
    numbers = (1, 151, 245)
    images = [{"id": n, "file_name": f"{n:03}.tiff", "width": 7000, "height": 5000} for n in numbers]
    categories = [{"id": 1, "name": "mitotic figure"}, {"id": 2, "name": "hard negative"}]
    annotations = [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": box},
        {"id": 2, "image_id": 1, "category_id": 2, "bbox": [200, 300, 250, 350]},
    ]
    path = folder / "MIDOG++.json"
    path.write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    return path


def test_midog_boxes_are_corners_and_unlabelled_images_are_left_out(tmp_path: Path) -> None:
    path = midog_json(tmp_path, [4336, 346, 4386, 396])
    dataset = read_dataset("midog", path)
    assert points(tmp_path, "midog") == [
        ["midog/001", 4361, 371, "mitosis"],
        ["midog/001", 225, 325, "lookalike"],
    ]
    assert dataset.manifest["case"].tolist() == ["midog/001", "midog/245"]
    assert dataset.manifest["scanner"].tolist() == ["Hamamatsu XR", "3D Histech"]
    assert dataset.manifest["width"].tolist() == [7000, 7000]
    assert "1 images published without labels" in str(dataset.warnings[0])
    midog_json(tmp_path, [4336, 346, 50, 50])
    with pytest.raises(TableError, match="not a pair of corners"):
        read_dataset("midog", tmp_path)


def test_midog_databases(tmp_path: Path) -> None:
    slides = [("001.tiff", "/data/MIDOG"), ("151.tiff", "/data/MIDOG"), ("245.tiff", "/data/MIDOG")]
    drawn = [Drawn(1, [(4336, 346), (4386, 396)], 1, AREA), Drawn(1, [(225, 325)], 2), Drawn(2, [(1, 1)])]
    write_database(
        tmp_path / "MIDOG++.sqlite", slides, drawn, ["mitotic figure", "hard negative look-alikes"]
    )
    dataset = read_dataset("midog", tmp_path)
    assert points(tmp_path, "midog") == [
        ["midog/001", 4361, 371, "mitosis"],
        ["midog/001", 225, 325, "lookalike"],
    ]
    assert dataset.manifest["case"].tolist() == ["midog/001", "midog/245"]
    assert dataset.manifest["scanner"].tolist() == ["Hamamatsu XR", "3D Histech"]
    assert [warning.code for warning in dataset.warnings] == ["unlabelled-images", "annotations-left-out"]
    generic = read_dataset("sliderunner", tmp_path)
    assert generic.truth.slides == ("MIDOG++/001", "MIDOG++/151", "MIDOG++/245")


def test_any_sliderunner_database_with_slides_beside_it(tmp_path: Path) -> None:
    for name in ("x/05/01.tif", "x/07/01.tif", "b.tif", "p/c.tif", "q/c.tif"):
        write_image(tmp_path / name)
    slides = [("01.tif", "/d/05"), ("01.tif", "/d/06"), ("b.tif", "/elsewhere"), ("c.tif", None)]
    drawn = [Drawn(1, [(1, 2)]), Drawn(2, [(3, 4)], 0), Drawn(3, [])]
    path = write_database(tmp_path / "study.sqlite", slides, drawn)
    dataset = read_dataset("sliderunner", path)
    manifest = dataset.manifest.set_index("case")["he"]
    found = {case: "/".join(Path(he).parts[-2:]) if he else "" for case, he in manifest.items()}
    assert found == {
        "study/05/01": "05/01.tif",
        "study/06/01": "",
        "study/b": f"{tmp_path.name}/b.tif",
        "study/c": "",
    }
    assert points(path, "sliderunner") == [
        ["study/05/01", 1, 2, "mitosis"],
        ["study/06/01", 3, 4, "unclassified"],
    ]
    assert [str(warning) for warning in dataset.warnings] == [
        "study.sqlite: 1 annotations without coordinates left out",
        "several files could be c.tif, so none was used. Keep one of them beside the database.",
    ]
    imported = import_dataset("sliderunner", tmp_path, tmp_path / "out", mpp=0.25)
    assert imported.labels == {"mitosis": 1, "unclassified": 1}


def test_icpr2012_lines_are_pixels_of_one_mitosis(tmp_path: Path) -> None:
    folder = tmp_path / "scanner_A/A00_v2"
    write_image(folder / "A00_00.bmp")
    write_image(folder / "A00_01.bmp")
    (folder / "A00_00.csv").write_text("10,20,12,20,10,22,12,22\n30,31,32,33,\n")
    assert points(tmp_path, "icpr2012") == [
        ["icpr2012/A00_00", 11, 21, "mitosis"],
        ["icpr2012/A00_00", 31, 32, "mitosis"],
    ]
    dataset = read_dataset("icpr2012", tmp_path)
    assert dataset.manifest["mpp"].tolist() == [0.2456, 0.2456]
    assert dataset.truth.slides == ("icpr2012/A00_00", "icpr2012/A00_01")
    (folder / "A00_01.csv").write_text("1,2,3\n")
    with pytest.raises(TableError, match="not pairs of x and y"):
        read_dataset("icpr2012", tmp_path)


def test_mitos_atypia14(tmp_path: Path) -> None:
    write_image(tmp_path / "A03/frames/x40/A03_00Aa.tiff")
    write_image(tmp_path / "A03/frames/x20/A03_00A.tiff")
    (tmp_path / "A03/mitosis").mkdir()
    (tmp_path / "A03/mitosis/A03_00Aa_mitosis.csv").write_text("30,20,0.8\n")
    (tmp_path / "A03/mitosis/A03_00Aa_not_mitosis.csv").write_text("5,6,0.2\n")
    dataset = read_dataset("mitos-atypia14", tmp_path)
    assert dataset.manifest["case"].tolist() == ["mitos-atypia14/A03_00Aa"]
    found = dataset.truth.table[["x", "y", "label", "confidence"]].to_numpy().tolist()
    assert found == [[30, 20, "mitosis", 0.8], [5, 6, "lookalike", 0.2]]


def test_brecahad_places_are_shares_of_the_image(tmp_path: Path) -> None:
    write_image(tmp_path / "images/Case_1-01.tif", 200, 100)
    (tmp_path / "groundTruth").mkdir()
    truth = {"mitosis": [{"x": 0.5, "y": 0.1}], "apoptosis": [{"x": 0, "y": 1}], "tumor": []}
    (tmp_path / "groundTruth/Case_1-01.json").write_text(json.dumps(truth))
    assert points(tmp_path, "brecahad") == [
        ["brecahad/Case_1-01", 100, 10, "mitosis"],
        ["brecahad/Case_1-01", 0, 100, "lookalike"],
    ]
    (tmp_path / "groundTruth/Case_1-01.json").write_text('{"mitosis": [{"x": 120, "y": 0.1}]}')
    with pytest.raises(TableError, match="not shares"):
        read_dataset("brecahad", tmp_path)


@pytest.mark.parametrize("name", ["ccmct", "cmc"])
def test_sliderunner_data_sets(tmp_path: Path, name: str) -> None:
    write_sliderunner(tmp_path / "MITOS_WSI_CCMCT_ODAEL.sqlite")
    write_image(tmp_path / "WSI/a.tif")
    dataset = read_dataset(name, tmp_path)
    assert dataset.manifest["case"].tolist() == [f"{name}/a", f"{name}/b"]
    assert dataset.manifest["width"].tolist() == [900, 900]
    assert dataset.manifest["he"].iloc[0].endswith("a.tif")
    write_sliderunner(tmp_path / "MITOS_WSI_CCMCT_MEL.sqlite")
    with pytest.raises(TableError, match="2 databases"):
        read_dataset(name, tmp_path)


def test_simulated_cohorts(tmp_path: Path) -> None:
    (tmp_path / "manifest.csv").write_text(
        "case,he,phh3,laboratory,split\nc1,c1/he.tif,c1/phh3.tif,lab,train\n"
    )
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/truth.csv").write_text(
        "case,id,category,x_he,y_he\nc1,0,mitosis,5,6\nc1,1,artefact,7,8\n"
    )
    assert points(tmp_path, "simulated") == [["c1", 5, 6, "mitosis"], ["c1", 7, 8, "artefact"]]
    assert read_dataset("simulated", tmp_path).manifest["laboratory"].tolist() == ["lab"]


def test_import_round_trip_scores_perfectly(tmp_path: Path) -> None:
    midog_json(tmp_path, [4336, 346, 4386, 396])
    imported = import_dataset("midog", tmp_path, tmp_path / "out", mpp=0.25)
    assert imported.labels == {"mitosis": 1, "lookalike": 1}
    manifest = read_manifest(imported.manifest_path)
    assert manifest[["case", "mpp"]].to_numpy().tolist() == [["midog/001", 0.25], ["midog/245", 0.25]]
    result = evaluate_mitoses(tmp_path / "out", imported.truth_path, bootstrap=BootstrapConfig(samples=0))
    assert (result.overall.true, result.overall.false, result.overall.slides) == (1, 0, 2)


def test_unknown_names_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Choose one of"):
        read_dataset("tupac17", tmp_path)
    for name in ADAPTERS:
        with pytest.raises(TableError):
            read_dataset(name, tmp_path)
    with pytest.raises(TableError, match="no such folder"):
        read_dataset("midog", tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "folder", "images", "labels"),
    [
        ("icpr2012", "icpr2012-aperio", 35, {"mitosis": 216, "ignore": 10}),
        ("icpr2012", "icpr2012-hamamatsu-painted", 35, {"ignore": 226}),
        ("icpr2012", "icpr2012-aperio-eval-painted", 15, {"ignore": 101}),
        ("midesec", "midesec", 35, {"mitosis": 109}),
        ("mitos-atypia14", "mitos-atypia14-A03", 6, {"mitosis": 12, "lookalike": 30}),
    ],
)
def test_real_folders(real_data: Path, name: str, folder: str, images: int, labels: dict[str, int]) -> None:
    dataset = read_dataset(name, real_data / folder)
    assert len(dataset.manifest) == images
    assert dataset.truth.table["label"].value_counts().to_dict() == labels
    assert all(Path(path).is_file() for path in dataset.manifest["he"])


def test_real_fields_are_evaluated_with_their_painted_places_ignored(real_data: Path, tmp_path: Path) -> None:
    imported = import_dataset("mitos-atypia14", real_data / "mitos-atypia14-A03", tmp_path / "t")
    truth = pd.read_csv(imported.truth_path)
    predictions = truth.assign(probability=np.where(truth["label"] == "mitosis", 0.9, 0.3), label="mitosis")
    predictions.to_csv(tmp_path / "p.csv", index=False)
    result = evaluate_mitoses(tmp_path / "t", tmp_path / "p.csv", bootstrap=BootstrapConfig(samples=10))
    assert result.overall.best_f1 == 1
    assert (result.overall.true, result.overall.false) == (12, 30)
