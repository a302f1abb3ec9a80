"""From detections to the clinical number: hotspot, mitotic count, grade, proliferation score, uncertainty."""
