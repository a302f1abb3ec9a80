"""From PHH3 to H&E: one global similarity, a smooth local field, and a checked shift for each point."""

from metaphase.registration.config import RegistrationConfig
from metaphase.registration.geojson import map_geojson, points_geojson
from metaphase.registration.imaging import nuclear_density
from metaphase.registration.pair import Registration, register_pair
from metaphase.registration.pictures import draw_registration, save_registration_picture
from metaphase.registration.points import register_points
from metaphase.registration.quality import Verdict
from metaphase.registration.saving import Annotations, mapped_points, register_to_folder
from metaphase.registration.similarity import Similarity
from metaphase.registration.transform import Transform, TransformError, load_transform, save_transform

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
    "save_registration_picture",
    "save_transform",
]
