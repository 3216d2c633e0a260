-- Lets a pilot be granted at once while regular jobs are queued.
--
-- slurmctld refuses an immediate allocation whenever a queued job has a higher priority number, even on nodes which
-- that job does not need. Pilots get a number above every regular job. They stay at the bottom all the same: which job
-- is tried first and which may be preempted is decided by the partition's PriorityTier, which this file does not touch.
--
-- This code runs inside slurmctld for every user's job: it leaves all others as they are, and whatever goes wrong in it
-- lets the job through unchanged.

local ELASTIC_PARTITION = "elastic"
local PILOT_PRIORITY = 4294967290

-- A pilot is an allocation of one node, made by salloc: it has no script. Batch jobs and larger
-- allocations, which may wait in the queue, keep the number they have.
local function is_pilot(job_desc)
  return job_desc.partition == ELASTIC_PARTITION and job_desc.script == nil and job_desc.max_nodes == 1
end

local function raise_pilot(job_desc)
  if is_pilot(job_desc) then
    job_desc.priority = PILOT_PRIORITY
  end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local ok, fault = pcall(raise_pilot, job_desc)
  if not ok then
    slurm.log_info("job_submit: left a job as it was: %s", tostring(fault))
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
