"""Who may talk to a cluster: a scheduler runs code for whoever reaches it, so it asks for certificates."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from distributed import Client, Security

from kedrl_dask.engine.storage.untrusted import checked_path
from kedrl_dask.utils.exceptions import warn

__all__ = ["Certificates", "InsecureClusterWarning", "cluster_security", "is_loopback", "warn_of_plain_text"]


class InsecureClusterWarning(UserWarning):
    """A cluster can be reached from other machines, and asks nobody who they are."""


@dataclass(frozen=True)
class Certificates:
    """PEM files by which the scheduler, its workers and clients know each other.

    Parameters
    ----------
    authority : path
        Certificate of the authority that signed.
    certificate : path
        The certificate of this cluster.
    key : path
        Its private key, which nobody but its owner may be able to read.
    """

    authority: Path
    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        """Refuse files that are not there, and a key that is no secret."""
        for name in ("authority", "certificate", "key"):
            path = checked_path(getattr(self, name), name)
            object.__setattr__(self, name, path)
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file, expected the {name} in PEM form")
        mode = stat.S_IMODE(os.stat(self.key).st_mode)
        if mode & 0o077:
            raise PermissionError(
                f"{self.key}: has mode {mode:04o}, so that others can read the private key; chmod 600 it"
            )

    def security(self) -> Security:
        """What Dask asks for; connections that are not encrypted are refused."""
        own = {
            f"tls_{role}_{part}": os.fspath(path)
            for role in ("scheduler", "worker", "client")
            for part, path in (("cert", self.certificate), ("key", self.key))
        }
        return Security(require_encryption=True, tls_ca_file=os.fspath(self.authority), **own)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can be reached from this machine alone."""
    host = host.strip("[]").partition("%")[0]
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


def cluster_security(host: str, certificates: Certificates | None = None) -> Security | None:
    """What a cluster that listens on ``host`` needs: TLS, and nothing on loopback unless it is given.

    Without certificates, temporary ones are made that exist in the memory of this cluster's processes only.
    """
    if certificates is not None:
        return certificates.security()
    if is_loopback(host):
        return None
    try:
        return Security.temporary()
    except ImportError as error:
        raise ValueError(
            f"a cluster on {host} can be reached from other machines and needs TLS, and temporary "
            "certificates need the package cryptography: pip install 'kedrl-dask[tls]', or give certificates"
        ) from error


def warn_of_plain_text(client: Client) -> None:
    """Warn of a client's cluster that others can reach and that asks for no certificate."""
    address = client.scheduler.address if client.scheduler is not None else ""
    scheme, host = urlsplit(address).scheme, urlsplit(address).hostname or ""
    if scheme in ("", "inproc", "tls", "wss") or is_loopback(host):
        return
    warn(
        f"the scheduler at {address} is not on loopback and its traffic is not encrypted: whoever reaches it "
        "can run code as you; start the cluster with security=distributed.Security.temporary(), or with "
        "certificates",
        InsecureClusterWarning,
    )
