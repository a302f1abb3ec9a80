"""From PHH3 to H&E: one global similarity, a smooth local field, and a checked shift for each point."""

from metaphase.labels.registration.files import (
    Annotations,
    draw_registration,
    map_geojson,
    mapped_points,
    points_geojson,
    register_to_folder,
    save_registration_picture,
)
from metaphase.labels.registration.pair import Registration, Verdict, register_pair, same_tissue
from metaphase.labels.registration.points import register_points
from metaphase.labels.registration.similarity import RegistrationConfig, Similarity
from metaphase.labels.registration.tiles import nuclear_density
from metaphase.labels.registration.transform import Transform, TransformError, load_transform, save_transform

__all__ = [
    "Annotations",
    "Registration",
    "RegistrationConfig",
    "Similarity",
    "Transform",
    "TransformError",
    "Verdict",
    "draw_registration",
    "load_transform",
    "map_geojson",
    "mapped_points",
    "nuclear_density",
    "points_geojson",
    "register_pair",
    "register_points",
    "register_to_folder",
    "same_tissue",
    "save_registration_picture",
    "save_transform",
]
