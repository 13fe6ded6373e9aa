"""TLS for clusters: a scheduler runs code for anyone who can reach it, so it requires certificates."""

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


class InsecureClusterWarning(UserWarning):
    """A cluster can be reached from other machines without authentication."""


@dataclass(frozen=True)
class Certificates:
    """PEM files by which the scheduler, its workers and clients identify each other."""

    authority: Path  # certificate of the signing authority
    certificate: Path  # of this cluster
    key: Path  # private, readable by its owner only

    def __post_init__(self) -> None:
        """Check that the files exist and that the key is private."""
        for name in ("authority", "certificate", "key"):
            path = checked_path(getattr(self, name), name)
            object.__setattr__(self, name, path)
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file, expected the {name} in PEM form")
        mode = stat.S_IMODE(os.stat(self.key).st_mode)
        if mode & 0o077:
            raise PermissionError(
                f"{self.key}: has mode {mode:04o}, so that others can read the private key; use chmod 600"
            )

    def security(self) -> Security:
        """Dask's form of the certificates; unencrypted connections are refused."""
        own = {
            f"tls_{role}_{part}": os.fspath(path)
            for role in ("scheduler", "worker", "client")
            for part, path in (("cert", self.certificate), ("key", self.key))
        }
        return Security(require_encryption=True, tls_ca_file=os.fspath(self.authority), **own)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    host = host.strip("[]").partition("%")[0]
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name, which may resolve to any address
        return False


def cluster_security(host: str, certificates: Certificates | None = None) -> Security | None:
    """Security of a cluster that listens on ``host``: TLS, which is optional on loopback.

    Without certificates, temporary ones are created, which only exist in memory of the cluster's processes.
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
    """Warn if the cluster of a client can be reached by others without a certificate."""
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
