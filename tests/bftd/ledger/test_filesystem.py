"""On which file systems the ledger may be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bftd.base.errors import LedgerError
from bftd.ledger import filesystem
from bftd.ledger.file import Ledger
from bftd.ledger.filesystem import network_type
from tests.support.messages import wording

# As Linux prints it on a node with a home on NFS, a scratch on Lustre, and a local disk mounted within the home.
MOUNTS = """\
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
25 21 0:22 / /proc rw - proc proc rw
30 21 0:41 / /home rw,relatime shared:17 - nfs4 filer:/export/home rw,vers=4.2,addr=10.0.0.1
31 21 0:42 / /var/lib/bftd rw - nfs filer:/export/bftd rw,vers=3
32 21 0:43 / /scratch rw - lustre 10.0.0.2@o2ib:/lfs rw,flock
33 30 254:2 / /home/local rw - xfs /dev/vdb rw
34 21 0:44 / /mnt/with\\040blank rw - cifs //server/share rw
35 21 0:45 / /mnt/ssh rw - fuse.sshfs host:/ rw
36 21 0:46 / /mnt/disk rw - fuseblk /dev/sdb1 rw
37 21 254:3 / /opt rw - nfs4 filer:/opt rw
38 37 254:3 / /opt rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/other/ledger.sqlite", None),
        ("/var/lib/bftd/ledger.sqlite", "nfs"),
        ("/home/ann/ledger.sqlite", "nfs4"),
        ("/home/local/ledger.sqlite", None),
        ("/homes/ledger.sqlite", None),
        ("/scratch/ledger.sqlite", "lustre"),
        ("/mnt/with blank/ledger.sqlite", "cifs"),
        ("/mnt/ssh/ledger.sqlite", "fuse.sshfs"),
        ("/mnt/disk/ledger.sqlite", None),
        ("/opt/ledger.sqlite", None),
    ],
)
def test_a_file_system_that_another_host_serves_is_known_by_its_type(path: str, kind: str | None) -> None:
    assert network_type(Path(path), MOUNTS) == kind


def test_this_machines_own_mounts_are_read_as_findmnt_reads_them(tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    for folder in (tmp_path, Path("/proc"), Path("/")):
        found = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", str(folder)], capture_output=True, text=True)
        assert filesystem._type_of(str(folder), mounts) == found.stdout.splitlines()[-1]


def test_regression_a_ledger_on_nfs_is_refused_in_a_line_that_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "network_type", lambda path: "nfs4")
    with pytest.raises(LedgerError) as error:
        Ledger(tmp_path / "ledger")
    assert str(error.value) == (wording("service.ledger.on_shared_disk", path=f"{tmp_path}/ledger", kind="nfs4"))
    assert list(tmp_path.iterdir()) == []
