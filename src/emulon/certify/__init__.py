"""Certificates and their proofs: domains, error terms, ball arithmetic, audits."""

from emulon.certify.certificate import Band, Certificate, Run
from emulon.certify.domain import Domain, Spectrum

__all__ = ["Band", "Certificate", "Domain", "Run", "Spectrum"]
