-- The job_submit.lua of a site that has none of its own; any other site adds the two lines to its own, before the
-- last `return`. Settings go into the braces; bftd.lua says which there are. See docs/howto/slurm.md.

function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

local found, bftd = pcall(dofile, "/etc/slurm/bftd.lua")
if found then bftd.install({}) else slurm.log_error("bftd is left out: %s", tostring(bftd)) end

return slurm.SUCCESS
