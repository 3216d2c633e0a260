-- Lmod: bftd in a folder that all hosts see, as MODULEPATH/bftd/VERSION.lua (docs/howto/install.md).
local version = myModuleVersion()
local root = pathJoin("/opt/bftd", version)

help("bft submits elastic training jobs and shows them; scripts find bftd's `elastic` beside their own torch.")
whatis("Name: bftd")
whatis("Version: " .. version)
whatis("Description: trains neural networks on a Slurm cluster's idle nodes")

-- The programs alone: the environment's own python is not for users.
prepend_path("PATH", pathJoin(root, "programs"))
append_path("PYTHONPATH", pathJoin(root, "bftd-" .. version .. "-py3-none-any.whl"))
