"""The Spack recipe: a site copies it to packages/bftd/package.py of a repository of its own.

The source distribution of a release lies in the folder in which `spack install` runs. Its sum, for `version`, is in the
release's SHA256SUMS.
"""

# ruff: noqa: F403, F405
import os

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class Bftd(PythonPackage):
    """Trains neural networks on a Slurm cluster's idle nodes, elastically, and gives the nodes back when Slurm asks."""

    homepage = "https://arxiv.org/abs/2106.12091"
    url = f"file://{os.getcwd()}/bftd-1.0.0.tar.gz"
    manual_download = True

    license("MIT")

    version("1.0.0")

    variant("torch", default=False, description="Bring torch, for training scripts in this environment")
    variant("spank", default=False, description="Compile the plug-in for sbatch --elastic")

    depends_on("c", type="build", when="+spank")
    depends_on("gmake", type="build", when="+spank")
    depends_on("slurm", when="+spank")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")
    depends_on("py-aiohttp@3.9:", type=("build", "run"))
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-clustershell@1.9:", type=("build", "run"))
    depends_on("py-highspy@1.11:1.15,1.17:", type=("build", "run"))
    depends_on("py-numpy@1.24:", type=("build", "run"))
    depends_on("py-prometheus-client@0.17:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-textual@2:", type=("build", "run"))
    depends_on("py-tomli@2:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-torch@2.4:", type=("build", "run"), when="+torch")
    depends_on("py-xxhash@3:", type=("build", "run"), when="+torch")

    import_modules = ("bftd", "elastic", "milp", "sizing", "slurm_plugin")

    @run_after("install")
    def install_plugin(self) -> None:
        """Compile spank_bftd.so against this Slurm, for plugstack.conf, and lay the Lua files beside it."""
        if self.spec.satisfies("+spank"):
            make("plugins", f"PYTHON={self.spec['python'].command.path}")
            mkdirp(self.prefix.lib.slurm)
            install("build/plugins/spank_bftd.so", self.prefix.lib.slurm)
            install("slurm_plugin/plugins/lua/*.lua", self.prefix.lib.slurm)
