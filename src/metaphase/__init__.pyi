from metaphase.api import Calibration as Calibration
from metaphase.api import CountConfig as CountConfig
from metaphase.api import DetectionConfig as DetectionConfig
from metaphase.api import MetaphaseError as MetaphaseError
from metaphase.api import RegistrationConfig as RegistrationConfig
from metaphase.api import Result as Result
from metaphase.api import Results as Results
from metaphase.api import Slide as Slide
from metaphase.api import calibrate as calibrate
from metaphase.api import demo_field as demo_field
from metaphase.api import detect as detect
from metaphase.api import evaluate as evaluate
from metaphase.api import load_model as load_model
from metaphase.api import load_profile as load_profile
from metaphase.api import load_result as load_result
from metaphase.api import load_results as load_results
from metaphase.api import open_slide as open_slide
from metaphase.api import register as register
from metaphase.api import score as score
from metaphase.api import tissue as tissue
from metaphase.api import use_network as use_network

__version__: str
