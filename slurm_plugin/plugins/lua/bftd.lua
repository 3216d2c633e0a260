-- Elastic jobs and pilots in slurmctld, for a site's job_submit.lua to load (docs/howto/slurm.md).
--
-- A job with --elastic becomes its own driver: the driver is put in front of the script, and the job goes to the
-- partition of the service nodes. The elastic partition is kept for pilots, and pilots get a priority number above every
-- regular job: slurmctld refuses an immediate allocation whenever a queued job has a higher number, even on nodes which
-- that job does not need. They stay at the bottom all the same: which job is tried first and which may be preempted is
-- decided by the partition's PriorityTier, which this file does not touch.
--
-- A job with --auto-gpus gets what it left out (bftd_gpus.lua, which stands beside this file).
--
-- This code runs inside slurmctld for every user's job. Whatever goes wrong in it lets a job without these options
-- through unchanged.

local M = {}

local settings = {
  driver = "/usr/bin/bft-driver", -- on the service nodes
  partition = "elastic", -- with commas between several
  driver_partition = "bft-driver",
  socket = "/run/bftd/bftd.sock", -- as the service nodes see it, or host:port
  pilot_mode = "salloc",
  pilot_limit_min = 60,
  reservation = "", -- that pilots get, where their number is not enough: Slurm 23.02 and later
  qos = "", -- that pilots get, so that they are charged to nobody (docs/reference/site.md)
  only_drivers = true, -- refuse other jobs in the driver partition
  administrators = { 0 }, -- uids that may do as they like in both partitions
}

local PILOT_PRIORITY = 4294967290
local OPTION = "^_SLURM_SPANK_OPTION_bftd_elastic=(.*)$"
local AUTO_OPTION = "^_SLURM_SPANK_OPTION_bftd_auto_gpus="
local FOLDER = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local MARK = "bftd elastic="
local DRIVER_LINE = "^#![^\n]*/bft%-driver\n#BFT {[^\n]*\"elastic\": ?\"([^\"]*)\""

-- What says how many nodes a job gets and of what kind: for an elastic job that is the daemon's to decide. Without any
-- of them a job is one task on one CPU, which is all that the driver needs.
local DECIDED = {
  { "min_nodes", "--nodes" }, { "num_tasks", "--ntasks" }, { "cpus_per_task", "--cpus-per-task" },
  { "ntasks_per_node", "--ntasks-per-node" }, { "ntasks_per_socket", "--ntasks-per-socket" },
  { "ntasks_per_core", "--ntasks-per-core" }, { "ntasks_per_tres", "--ntasks-per-gpu" },
  { "min_mem_per_node", "--mem" }, { "min_mem_per_cpu", "--mem-per-cpu" }, { "mem_per_tres", "--mem-per-gpu" },
  { "cpus_per_tres", "--cpus-per-gpu" }, { "tres_per_node", "--gres" }, { "tres_per_job", "--gpus" },
  { "tres_per_task", "--gpus-per-task or --tres-per-task" }, { "tres_per_socket", "--gpus-per-socket" }, { "req_nodes", "--nodelist" },
  { "exc_nodes", "--exclude" }, { "array_inx", "--array" },
}

-- What a pilot has no use for, and a queued job may be waiting for: the number would get it past that job, and to be
-- preempted gives nodes back, but no licence. (A change of features may boot a node.)
local NOT_FOR_PILOTS = { "licenses", "burst_buffer", "reservation", "features" }

-- Slurm's marks for a number that was not given, of 16, 32 and 64 bits.
local function is_given(value)
  return value ~= nil and value ~= slurm.NO_VAL16 and value ~= slurm.NO_VAL and value ~= slurm.NO_VAL64
end

-- A job is refused by raising one of these; anything else that is raised is a fault of this file.
local function refuse(...)
  error({ reason = string.format(...) }, 0)
end

local function log(level, ...)
  pcall(slurm[level], "bftd: %s", string.format(...))
end

local function contains(list, value)
  for _, item in ipairs(list) do
    if item == value then
      return true
    end
  end
  return false
end

local function names_partition(list, partition)
  for name in (list or ""):gmatch("[^,]+") do
    if name == partition then
      return true
    end
  end
  return false
end

local function is_harvested(name)
  return name ~= nil and names_partition(settings.partition, name)
end

-- The first harvested one of some partitions.
local function names_harvested(list)
  for name in (list or ""):gmatch("[^,]+") do
    if is_harvested(name) then
      return name
    end
  end
end

local function elastic_option(job_desc)
  local value
  for _, entry in pairs(job_desc.spank_job_env or {}) do
    value = entry:match(OPTION) or value
  end
  return value
end

local function has_auto_gpus(job_desc)
  for _, entry in pairs(job_desc.spank_job_env or {}) do
    if entry:find(AUTO_OPTION) then
      return true
    end
  end
  return false
end

-- The regular expression that the last option is, apart: only there is white space, and letters that JSON escapes.
local function without_expression(value)
  local at = value:find(",progress=", 1, true)
  return at and value:sub(1, at - 1) or value, at and value:sub(at) or ""
end

-- Whether a value is of the letters that the SPANK plug-in lets through.
local function is_plain(value)
  local front, expression = without_expression(value)
  return not front:find("[^%w_=,:.+@/~#%%-]") and not expression:find("[^ -~]")
end

-- The SPANK plug-in has told the user what is wrong; this is for those who go round it.
local function checked_range(value)
  local low, high = value:match("^(%d+)%-(%d+)$")
  if not low then
    low, high = value:match("^(%d+)%-(%d+),")
  end
  if not low then
    low = value:match("^(%d+)$") or value:match("^(%d+),")
    high = low
  end
  if not low or #low > 9 or #high > 9 or not is_plain(value) then
    refuse("--elastic: give the nodes as MIN-MAX, for example --elastic=1-8")
  end
  low, high = tonumber(low), tonumber(high)
  if low < 1 or low > high then
    refuse("--elastic=%d-%d: MIN is at least 1 and at most MAX", low, high)
  end
  return low, high
end

-- -N 1-8 beside --elastic=1-8 says the same twice; the driver is one task on one node.
local function take_nodes(job_desc, low, high)
  if job_desc.min_nodes == low and job_desc.max_nodes == high then
    job_desc.min_nodes, job_desc.max_nodes, job_desc.min_cpus = slurm.NO_VAL, slurm.NO_VAL, 1
  end
end

local function refuse_decided(job_desc)
  for _, pair in ipairs(DECIDED) do
    if is_given(job_desc[pair[1]]) then
      refuse("%s: --elastic says how many nodes a job gets; leave it out", pair[2])
    end
  end
  if job_desc.shared == 0 then
    refuse("--exclusive: --elastic says how many nodes a job gets; leave it out")
  end
  if job_desc.contiguous == 1 then
    refuse("--contiguous: --elastic says how many nodes a job gets; leave it out")
  end
end

local function check_python(script)
  if script:find("^#![^\n]*\n# This script was created by sbatch %-%-wrap") then
    refuse("--wrap: an elastic job is a Python script: sbatch --elastic=MIN-MAX SCRIPT [ARG...]")
  end
  local first = script:match("^#!([^\n]*)")
  if not first then
    refuse("the script's first line must name its Python, for example #!/usr/bin/env python3")
  end
  local words = {}
  for word in first:gmatch("%S+") do
    local is_env = #words == 0 and word:match("[^/]*$") == "env"
    if not is_env and (#words > 0 or word:sub(1, 1) ~= "-") then
      words[#words + 1] = word
    end
  end
  local program = (words[1] or ""):match("[^/]*$")
  if not (program:find("^python[%d.]*$") or program:find("^pypy[%d.]*$")) then
    refuse("an elastic job is a Python script; the first line of this one is '%s'", first:gsub("%c", "?"):sub(1, 80))
  end
end

-- What the user asks of the pool's nodes by --constraint; the driver runs on another node, so the job has it no more.
local function take_constraint(job_desc)
  local wanted = job_desc.features
  if wanted == nil or wanted == "" then
    return nil
  end
  if ("&" .. wanted .. "&"):find("&&", 1, true) or wanted:find("[^%w_.:=+&-]") then
    refuse("--constraint=%s: an elastic job takes features joined by &, for example --constraint='a100&ib'",
      (wanted:gsub("%c", "?")))
  end
  job_desc.features = ""
  return wanted
end

-- The partition whose nodes the job may have, "" for any of several.
local function check_partitions(job_desc, part_list, value, low, high)
  local several = settings.partition:find(",", 1, true)
  local wanted = job_desc.partition or settings.partition
  if wanted ~= settings.partition and not is_harvested(wanted) then
    refuse("partition %s is not harvested: take %s, or leave -p out", wanted, (settings.partition:gsub(",", " or ")))
  end
  local size, usable = 0, {}
  for name in wanted:gmatch("[^,]+") do
    if part_list[name] then
      usable[#usable + 1] = name
      size = size and part_list[name].total_nodes and size + part_list[name].total_nodes
    end
  end
  local needed = { usable[1] or wanted, settings.driver_partition }
  for _, name in ipairs(needed) do
    if not part_list[name] then
      refuse("an elastic job needs the partition %s, which you may not use: ask your administrators", name)
    end
  end
  if size and low > size then
    refuse("--elastic=%s: partition %s has %d nodes; ask for a MIN of at most %d", without_expression(value), wanted,
      size, size)
  end
  if size and high > size then
    slurm.log_user("partition %s has %d nodes: the job trains on at most as many", wanted, size)
  end
  return several and wanted == settings.partition and "" or wanted
end

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\" }

local function quoted(text)
  local escaped = text:gsub('[%c"\\]', function(letter)
    return ESCAPES[letter] or string.format("\\u%04x", letter:byte())
  end)
  return '"' .. escaped .. '"'
end

-- The form is that of elastic/options/job_script.py. The driver looks for the interpreter itself, on the job's own PATH.
local function with_driver(job_desc, value, partition, constraint)
  local first, rest = job_desc.script:match("^([^\n]*)\n?(.*)$")
  local argv = job_desc.argv
  local path = argv and argv[0] or job_desc.work_dir .. "/" .. (job_desc.name or "script")
  if path:sub(1, 1) ~= "/" then
    path = job_desc.work_dir .. "/" .. path
  end
  local header = {
    '"elastic": ' .. quoted(value), '"partition": ' .. quoted(partition),
    '"socket": ' .. quoted(settings.socket), '"script": ' .. quoted(path), '"interpreter": ""',
    '"pilot_options": []', '"pilot_mode": ' .. quoted(settings.pilot_mode), '"first": ' .. quoted(first),
  }
  if constraint then -- a driver of an older bftd knows no such field
    header[#header + 1] = '"constraint": ' .. quoted(constraint)
  end
  return "#!" .. settings.driver .. "\n#BFT {" .. table.concat(header, ", ") .. "}\n" .. rest
end

-- Slurm takes no long comment, and who reads it has no use for the expression.
local function mark(job_desc, value)
  value = without_expression(value)
  local before = job_desc.admin_comment
  job_desc.admin_comment = (before and before .. "; " or "") .. MARK .. value .. " partition=" .. settings.partition
end

local function make_elastic(job_desc, part_list, value)
  if job_desc.script == nil then
    refuse("--elastic is for batch jobs only: submit the training script with sbatch --elastic=MIN-MAX SCRIPT")
  end
  local low, high = checked_range(value)
  check_python(job_desc.script)
  take_nodes(job_desc, low, high)
  refuse_decided(job_desc)
  local partition = check_partitions(job_desc, part_list, value, low, high)
  local script = with_driver(job_desc, value, partition, take_constraint(job_desc))
  mark(job_desc, value)
  job_desc.partition = settings.driver_partition
  job_desc.script = script
  slurm.log_user("elastic job: %d to %d nodes of %s; its driver runs in %s", low, high,
    partition ~= "" and partition or settings.partition, settings.driver_partition)
end

local function is_short(job_desc)
  local limit = job_desc.time_limit
  return is_given(limit) and limit >= 1 and limit <= settings.pilot_limit_min
end

-- A pilot is one node for a short time, now or never. What could wait in the queue is none: a pending job with the
-- pilots' number would take freed nodes from the job that they were freed for.
local function is_pilot(job_desc)
  local waits = job_desc.immediate ~= 1 or job_desc.priority == 0 or (job_desc.begin_time or 0) ~= 0
    or job_desc.dependency ~= nil or is_given(job_desc.het_job_offset)
  for _, name in ipairs(NOT_FOR_PILOTS) do
    if job_desc[name] ~= nil then
      return false
    end
  end
  return is_harvested(job_desc.partition) and job_desc.script == nil and not waits
    and job_desc.min_nodes == 1 and job_desc.max_nodes == 1 and is_short(job_desc)
end

-- Where the Lua file cannot give pilots their number, or a site does not want it to: short jobs of one node.
local function is_sbatch_pilot(job_desc)
  return settings.pilot_mode == "sbatch" and is_harvested(job_desc.partition) and job_desc.script ~= nil
    and job_desc.min_nodes == 1 and job_desc.max_nodes == 1 and is_short(job_desc)
end

-- The driver that `bft sbatch` put in front of a script, by the value of --elastic in it.
local function submitted_range(job_desc)
  local value = job_desc.partition == settings.driver_partition and (job_desc.script or ""):match(DRIVER_LINE)
  value = value and without_expression(value) -- a quote in the expression has cut it off anyhow
  return value and is_plain(value) and value or nil
end

-- A job in the pilots' reservation is not compared with the queue, whatever its number: nobody else may name it.
local function check_reservation(wanted, uid)
  if settings.reservation ~= "" and names_partition(wanted, settings.reservation)
    and not contains(settings.administrators, uid) then
    refuse("reservation %s is for the pilots of elastic jobs: leave --reservation out", settings.reservation)
  end
end

-- What runs under the pilots' QOS is charged to nobody.
local function check_qos(wanted, uid)
  if settings.qos ~= "" and wanted == settings.qos and not contains(settings.administrators, uid) then
    refuse("QOS %s is for the pilots of elastic jobs: leave --qos out", settings.qos)
  end
end

local function charge_nobody(job_desc)
  if settings.qos ~= "" then
    job_desc.qos = settings.qos
  end
end

local function fill_in_gpus(job_desc, part_list)
  local gpus = assert(loadfile(FOLDER .. "bftd_gpus.lua"))({
    is_given = is_given, refuse = refuse, names_partition = names_partition,
    is_ours = function(name)
      return is_harvested(name) or names_partition(settings.driver_partition, name)
    end,
  })
  slurm.log_user("%s", gpus.apply(job_desc, part_list))
end

local function submit(job_desc, part_list, uid)
  check_reservation(job_desc.reservation, uid)
  check_qos(job_desc.qos, uid)
  local value, is_auto = elastic_option(job_desc), has_auto_gpus(job_desc)
  if value and is_auto then
    refuse("--auto-gpus: an elastic job has no GPUs of its own to choose; leave --auto-gpus or --elastic out")
  elseif value then
    make_elastic(job_desc, part_list, value)
  elseif is_pilot(job_desc) then
    job_desc.priority = PILOT_PRIORITY
    if settings.reservation ~= "" then
      job_desc.reservation = settings.reservation
    end
    charge_nobody(job_desc)
  elseif names_harvested(job_desc.partition) then
    if is_sbatch_pilot(job_desc) then
      charge_nobody(job_desc)
    elseif not contains(settings.administrators, uid) then
      refuse("partition %s is for elastic jobs: sbatch --elastic=MIN-MAX SCRIPT, or choose another partition",
        names_harvested(job_desc.partition))
    end
  elseif names_partition(job_desc.partition, settings.driver_partition) then
    local submitted = submitted_range(job_desc)
    if submitted then
      mark(job_desc, submitted)
    elseif settings.only_drivers and not contains(settings.administrators, uid) then
      refuse("partition %s is for the drivers of elastic jobs: sbatch --elastic=MIN-MAX SCRIPT, or choose another "
        .. "partition", settings.driver_partition)
    end
  end
  if is_auto then -- after what is refused by its partition
    fill_in_gpus(job_desc, part_list)
  end
end

local function modify(job_desc, job_rec, uid)
  check_reservation(job_desc.reservation, uid)
  check_qos(job_desc.qos, uid)
  local wanted, present = job_desc.partition, job_rec.partition
  if wanted == nil or wanted == present or contains(settings.administrators, uid) then
    return
  end
  if (job_rec.admin_comment or ""):find(MARK, 1, true) then
    refuse("an elastic job stays in %s: to stop it use scancel", present)
  end
  local closed = { settings.only_drivers and settings.driver_partition or nil }
  for name in settings.partition:gmatch("[^,]+") do
    closed[#closed + 1] = name
  end
  for _, name in ipairs(closed) do
    if names_partition(wanted, name) or names_partition(present, name) then
      refuse("no job moves into partition %s or out of it: submit a new one", name)
    end
  end
end

-- Runs one of the two above; returns Slurm's code for the caller. `asked` says what the job asks of this file, nil for
-- nothing: a fault lets it through then.
local function guarded(asked, work, ...)
  local ok, fault = pcall(work, ...)
  if ok then
    return slurm.SUCCESS
  end
  if type(fault) == "table" then
    slurm.log_user("%s", fault.reason)
    return slurm.ESLURM_ACCESS_DENIED
  end
  log("log_error", "left a job as it was: %s", tostring(fault))
  local what = asked()
  if what then
    pcall(slurm.log_user, "%s not work here at the moment: tell your administrators", what)
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

--- Decides on a new job: what slurm_job_submit is given, and what it returns.
function M.job_submit(job_desc, part_list, submit_uid)
  return guarded(function()
    local ok, is_auto = pcall(has_auto_gpus, job_desc)
    local _, value = pcall(elastic_option, job_desc)
    return ok and (is_auto and "--auto-gpus does" or value and "elastic jobs do") or nil
  end, submit, job_desc, part_list, submit_uid)
end

--- Decides on a change of a job: what slurm_job_modify is given, and what it returns.
function M.job_modify(job_desc, job_rec, part_list, modify_uid)
  return guarded(function() end, modify, job_desc, job_rec, modify_uid)
end

--- Puts both in front of the site's own functions. `changes`: the settings that differ from those above.
function M.install(changes)
  for key, value in pairs(changes or {}) do
    if settings[key] == nil then
      log("log_error", "unknown setting %s in job_submit.lua is ignored", tostring(key))
    else
      settings[key] = value
    end
  end
  local site_submit, site_modify = slurm_job_submit, slurm_job_modify
  function slurm_job_submit(job_desc, part_list, submit_uid)
    local code = M.job_submit(job_desc, part_list, submit_uid)
    if code ~= slurm.SUCCESS or not site_submit then
      return code
    end
    return site_submit(job_desc, part_list, submit_uid)
  end
  function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    local code = M.job_modify(job_desc, job_rec, part_list, modify_uid)
    if code ~= slurm.SUCCESS or not site_modify then
      return code
    end
    return site_modify(job_desc, job_rec, part_list, modify_uid)
  end
end

return M
