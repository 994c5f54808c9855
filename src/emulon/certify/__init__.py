"""Certificates and their proofs: domains, error terms, ball arithmetic, audits."""

from emulon.certify.certificate import Band, Certificate
from emulon.certify.domain import Domain
from emulon.certify.result import Run
from emulon.certify.spectrum import Spectrum

__all__ = ["Band", "Certificate", "Domain", "Run", "Spectrum"]
