-- sbatch --auto-gpus in slurmctld: fills in what the user left out, of plans that the SPANK plug-in was given in sbatch.
-- bftd.lua loads this file from its own folder (docs/howto/slurm.md).
--
-- The plans come from the user's side of the wire, and are nothing that he could not have written as options: each field
-- is one of sbatch's, is checked here for its letters and its size, and Slurm judges the job afterwards as any other.

local given = ... -- what bftd.lua shares: is_given, refuse, names_partition, is_ours (a partition that is bftd's)

local M = {}

local OPTION = "^_SLURM_SPANK_OPTION_bftd_auto_gpus=(.*)$"
local ANSWER = "^BFTD_AUTO_GPUS=(.*)$"
local CHOSEN = "BFT_AUTO_GPUS" -- where the SPANK plug-in finds, in the job, what to write into its output
local ANSWER_LETTERS = 8192
local SCRIPT_LETTERS = 65536 -- slurmctld waits while a script is searched for its launcher
local PLAN_LETTERS = 1200
local WHY_LETTERS = 200
local CPUS_MOST = 60000 -- of a node; Slurm counts those of a task in 16 bits
local MEGABYTES_MOST = 2 ^ 30 -- of a node
local PARTITION_UP = 3 -- the state of a partition that takes jobs and starts them

-- Options that say which GPUs a job gets; the last two in other words than GPUs a node.
local GPU_FIELDS = {
  { "tres_per_node", "--gres" }, { "tres_per_job", "--gpus" }, { "tres_per_task", "--gpus-per-task" },
  { "tres_per_socket", "--gpus-per-socket" },
}
local CPU_FIELDS = { "cpus_per_task", "cpus_per_tres", "pn_min_cpus" }
local TASK_FIELDS = { "ntasks_per_tres", "ntasks_per_gpu", "ntasks_per_socket", "ntasks_per_core" }
local MEMORY_FIELDS = { "min_mem_per_node", "min_mem_per_cpu", "pn_min_memory", "mem_per_tres" }

-- Programs that start a node's processes themselves, and so want one task a node; sizing/sbatch/launchers.py has more.
local BY_NODE = {
  torchrun = "torchrun", ["torch.distributed.run"] = "torch%.distributed%.run",
  ["torch.distributed.launch"] = "torch%.distributed%.launch", ["accelerate launch"] = "accelerate%s+launch",
  deepspeed = "deepspeed",
}
local NO_LAUNCH = { import = true, from = true, pip = true, conda = true, mamba = true, module = true, echo = true, printf = true, which = true }

local function is_given(value)
  return given.is_given(value) and value ~= ""
end

local function any_given(job_desc, fields)
  for _, name in ipairs(fields) do
    if is_given(job_desc[name]) then
      return true
    end
  end
  return false
end

local function spank_value(job_desc, pattern)
  local value
  for _, entry in pairs(job_desc.spank_job_env or {}) do
    value = entry:match(pattern) or value
  end
  return value
end

--- The value of --auto-gpus, nil without it.
function M.option(job_desc)
  return spank_value(job_desc, OPTION)
end

local FORMS = {
  partition = "^[%w_.-]+$", nodes = "^%d+$", tasks = "^%d+$", gres = "^gpu:[%w_.:-]+$", cpus = "^%d+$", mem = "^%d+$",
  features = "^[%w_.:=+&|-]+$",
}

-- One plan: fields of the form NAME=VALUE with a space between them, and at the end why=TEXT. nil where it is none.
local function plan_of(text)
  local at = #text <= PLAN_LETTERS and text:find(" why=", 1, true)
  local front, why = text:sub(1, (at or 1) - 1), text:sub((at or 0) + #" why=")
  if not at or #why > WHY_LETTERS or why:find("[^ -~]") then
    return nil
  end
  local plan = { why = why }
  for word in front:gmatch("%S+") do
    local name, value = word:match("^(%l+)=(.+)$")
    if not name or not FORMS[name] or #value > 100 or not value:find(FORMS[name]) then
      return nil
    end
    plan[name] = FORMS[name]:find("%d+", 1, true) and tonumber(value) or value
  end
  plan.type, plan.gpus = (plan.gres or ""):match("^gpu:(.+):(%d+)$")
  if not plan.type then
    plan.gpus = (plan.gres or ""):match("^gpu:(%d+)$")
  end
  plan.gpus = tonumber(plan.gpus)
  if not plan.partition or not plan.nodes or not plan.tasks or not plan.gpus then
    return nil
  end
  for _, name in ipairs({ "nodes", "tasks", "gpus", "cpus" }) do
    if plan[name] and (plan[name] < 1 or plan[name] > 60000) then
      return nil
    end
  end
  if (plan.cpus or 1) * plan.tasks > CPUS_MOST or (plan.mem or 1) < 1 or (plan.mem or 1) > MEGABYTES_MOST then
    return nil
  end
  return plan
end

local function plans_of(job_desc)
  local plans, answer = {}, spank_value(job_desc, ANSWER)
  if not answer or #answer > ANSWER_LETTERS then
    return plans
  end
  for text in answer:gmatch("[^;]+") do
    plans[#plans + 1] = plan_of(text)
  end
  return plans
end

-- What a field of GPU_FIELDS says about GPUs, as (type or nil, number); nothing where it says nothing about them. Where
-- it names GPUs twice the type is false: no plan has several.
local function gpus_in(value)
  local kind, number
  for word in (value or ""):gmatch("[^,]+") do
    local rest = word:gsub("^gres[:/]", "")
    local count
    if rest == "gpu" then
      count = 1
    elseif rest:find("^gpu[:=]") then
      local before = kind
      kind, count = rest:match("^gpu[:=](.+)[:=](%d+)$")
      if not kind then
        count = rest:match("^gpu[:=](%d+)$")
        kind = not count and rest:sub(5) or before
      end
      count = tonumber(count or 1)
    end
    if count and number then
      return false, number + count
    end
    number = number or count
  end
  return kind, number
end

local function has_nodes(job_desc)
  return is_given(job_desc.min_nodes) and job_desc.min_nodes > 0
end

-- How many tasks the user wants in all, nil where he does not say so. Where he wrote --ntasks-per-node and no --nodes, sbatch
-- has put the tasks of one node there.
local function all_tasks(job_desc)
  local of_node = not has_nodes(job_desc) and is_given(job_desc.ntasks_per_node) and job_desc.ntasks_per_node
  return is_given(job_desc.num_tasks) and job_desc.num_tasks ~= of_node and job_desc.num_tasks or nil
end

-- How many GPUs a job of a plan's nodes has where each node, task or socket has so many, or all together do; nil where
-- that cannot be told.
local function gpus_of_job(job_desc, field, count, plan)
  if field == "tres_per_job" then
    return count
  elseif field == "tres_per_node" then
    return count * plan.nodes
  elseif field == "tres_per_socket" then
    return is_given(job_desc.sockets_per_node) and job_desc.sockets_per_node * count * plan.nodes or nil
  elseif all_tasks(job_desc) then
    return all_tasks(job_desc) * count
  end
  local tasks = is_given(job_desc.ntasks_per_node) and job_desc.ntasks_per_node > 0 and job_desc.ntasks_per_node
  return (tasks or plan.tasks) * count * plan.nodes
end

-- The option by which the user has chosen GPUs himself, "" by none; and whether a plan has the same ones.
local function chosen_gpus(job_desc)
  local by, wanted = "", {}
  for _, pair in ipairs(GPU_FIELDS) do
    local kind, count = gpus_in(job_desc[pair[1]])
    if count then
      by = by == "" and pair[2] or by
      wanted[#wanted + 1] = { field = pair[1], kind = kind, count = count }
    end
  end
  return by, function(plan)
    for _, each in ipairs(wanted) do
      local gpus = gpus_of_job(job_desc, each.field, each.count, plan)
      if gpus ~= plan.gpus * plan.nodes or (each.kind ~= nil and each.kind ~= plan.type) then
        return false
      end
    end
    return true
  end
end

-- Whether a partition has nothing against a job of so many nodes, account and QOS: job_submit runs before Slurm looks, and
-- a plan that Slurm refuses must not keep the next one from being taken. Who may not use it by its groups sees it not.
local function is_open(job_desc, partition, nodes)
  if is_given(partition.state_up) and partition.state_up ~= PARTITION_UP then
    return false
  end
  if (is_given(partition.min_nodes) and nodes < partition.min_nodes)
    or (is_given(partition.max_nodes) and nodes > partition.max_nodes) then
    return false
  end
  local account = job_desc.account or job_desc.default_account
  local qos = job_desc.qos or job_desc.default_qos
  local function named(list, name)
    return given.names_partition(list:lower(), name:lower())
  end
  local function refuses(allowed, denied, name)
    return (is_given(allowed) and name and not named(allowed, name))
      or (is_given(denied) and name and named(denied, name))
  end
  if is_given(partition.allow_accounts) and not account then
    return false
  end
  return not refuses(partition.allow_accounts, partition.deny_accounts, account)
    and not refuses(partition.allow_qos, partition.deny_qos, qos)
end

-- How many tasks a node has where the user says so, nil where he does not, false where that is not as many on each.
local function tasks_given(job_desc, nodes)
  if any_given(job_desc, TASK_FIELDS) then
    return false
  end
  if is_given(job_desc.ntasks_per_node) and job_desc.ntasks_per_node > 0 then
    return job_desc.ntasks_per_node
  elseif is_given(job_desc.num_tasks) then
    return job_desc.num_tasks % nodes == 0 and job_desc.num_tasks / nodes
  end
end

-- The program in a script that starts a node's processes, and how many where that is written out; nil where none does.
local function launcher(script)
  for line in (script:gsub("\\\n", " ") .. "\n"):gmatch("([^\n]*)\n") do
    line = " " .. line:gsub("^#.*", ""):gsub("%s#.*", "") .. " "
    if not NO_LAUNCH[line:match("%S+") or ""] then
      for name, pattern in pairs(BY_NODE) do
        local _, last = line:find("[^%w_.-]" .. pattern .. "[^%w_./=-]")
        if last then
          return name, tonumber(line:match("%-%-nproc[_-]per[_-]node[= ](%d+)%s", last))
        end
      end
    end
  end
end

local function agrees(job_desc, part_list, plan, processes)
  local partition = part_list[plan.partition]
  if processes and processes ~= plan.gpus then
    return false
  end
  if not partition or given.is_ours(plan.partition) then
    return false
  end
  if is_given(job_desc.partition) and not given.names_partition(job_desc.partition, plan.partition) then
    return false
  end
  if not is_open(job_desc, partition, plan.nodes) then
    return false
  end
  local limit, longest = job_desc.time_limit, partition.max_time
  if is_given(limit) and is_given(longest) and limit > longest then
    return false
  end
  if has_nodes(job_desc) then
    local most = is_given(job_desc.max_nodes) and job_desc.max_nodes > 0 and job_desc.max_nodes or job_desc.min_nodes
    if plan.nodes ~= job_desc.min_nodes or plan.nodes ~= most then
      return false -- also where he gave a range: on fewer nodes the plan would have too few GPUs
    end
  end
  if (all_tasks(job_desc) or plan.nodes) < plan.nodes then
    return false
  end
  return not (plan.features and is_given(job_desc.features) and job_desc.features ~= plan.features)
end

local function first_that_agrees(job_desc, part_list, plans, processes)
  local by, has_them = chosen_gpus(job_desc)
  local others = false
  for _, plan in ipairs(plans) do
    if agrees(job_desc, part_list, plan, processes) then
      if has_them(plan) then
        return plan, by
      end
      others = true
    end
  end
  if others then
    given.refuse("--auto-gpus: no plan has the GPUs that you ask for: leave %s out, or leave --auto-gpus out", by)
  end
  given.refuse("--auto-gpus: no plan agrees with the partition, nodes, tasks or time that you ask for, in a partition that "
    .. "takes the job (there are plans for %s): leave one of them out, or see `bft size fit`", M.partitions(plans))
end

--- The partitions of plans, for a message.
function M.partitions(plans)
  local names, seen = {}, {}
  for _, plan in ipairs(plans) do
    if not seen[plan.partition] and #names < 8 then
      seen[plan.partition] = true
      names[#names + 1] = plan.partition
    end
  end
  return table.concat(names, ", ")
end

-- Slurm puts these into a batch job's environment in sbatch, from the options: too early for what is filled in here, and
-- srun in the script goes by them.
local function put(job_desc, name, value)
  job_desc.environment[name] = tostring(value)
end

-- Puts GPUs beside other gres of the user's. By this name newer releases take what --gres takes and put their own prefix
-- before each, which is seen where it is read again; older ones (22.05) keep what is written, and want theirs.
local function add_gres(job_desc, gres)
  local words, before = {}, job_desc.tres_per_node or ""
  local prefix = before:match("^gres[:/]") or "gres:"
  for word in before:gmatch("[^,]+") do
    words[#words + 1] = word:gsub("^gres[:/]", "")
  end
  words[#words + 1] = gres
  job_desc.gres = table.concat(words, ",")
  if not (job_desc.tres_per_node or ""):find("gres[:/]gpu:") then
    job_desc.tres_per_node = prefix .. table.concat(words, "," .. prefix)
  end
end

-- What a job may have of a node in a partition: `value`, or the partition's own bound where that is less.
local function at_most(value, bound)
  return is_given(bound) and bound > 0 and bound < value and bound or value
end

-- Fills in what is left out and returns it as options.
local function fill(job_desc, partition, plan, gpus_by, program)
  local written = {}
  local function write(...)
    written[#written + 1] = string.format(...)
  end
  if not is_given(job_desc.partition) then
    job_desc.partition = plan.partition
    write("--partition=%s", plan.partition)
  end
  if plan.features and not is_given(job_desc.features) then
    job_desc.features = plan.features
    write("--constraint=%s", plan.features)
  end
  local tasks, all = tasks_given(job_desc, plan.nodes), all_tasks(job_desc)
  if not has_nodes(job_desc) then
    job_desc.min_nodes, job_desc.max_nodes = plan.nodes, plan.nodes
    put(job_desc, "SLURM_NNODES", plan.nodes)
    put(job_desc, "SLURM_JOB_NUM_NODES", plan.nodes)
    write("--nodes=%d", plan.nodes)
  end
  if tasks == nil then
    tasks = program and 1 or plan.tasks
    job_desc.ntasks_per_node = tasks
    put(job_desc, "SLURM_NTASKS_PER_NODE", tasks)
    write("--ntasks-per-node=%d", tasks)
  end
  if tasks and not all then
    all = plan.nodes * tasks
    job_desc.num_tasks = all
    put(job_desc, "SLURM_NTASKS", string.format("%d", all))
    put(job_desc, "SLURM_NPROCS", string.format("%d", all))
  end
  if gpus_by == "" then
    add_gres(job_desc, plan.gres)
    write("--gres=%s", plan.gres)
  end
  if plan.cpus and tasks and not any_given(job_desc, CPU_FIELDS) then
    local of_node = at_most(plan.cpus * plan.tasks, partition.max_cpus_per_node) -- a plan has a task for each GPU
    local cpus = math.max(1, math.floor(of_node / tasks))
    job_desc.cpus_per_task = cpus
    put(job_desc, "SLURM_CPUS_PER_TASK", cpus)
    write("--cpus-per-task=%d", cpus)
  end
  if tasks and job_desc.overcommit ~= 1 then -- sbatch has worked it out without what is filled in
    job_desc.min_cpus = all * (is_given(job_desc.cpus_per_task) and job_desc.cpus_per_task or 1)
  end
  if plan.mem and not any_given(job_desc, MEMORY_FIELDS) then
    local mem = at_most(plan.mem, partition.max_mem_per_node)
    job_desc.min_mem_per_node = mem
    put(job_desc, "SLURM_MEM_PER_NODE", string.format("%d", mem))
    write("--mem=%dM", mem)
  end
  return table.concat(written, " ")
end

--- Fills a job in and returns the line on it, which the user gets with the submission and in the job's output.
function M.apply(job_desc, part_list)
  if job_desc.script == nil then
    given.refuse("--auto-gpus is for batch jobs only: submit the job with sbatch --auto-gpus=... SCRIPT")
  end
  if is_given(job_desc.het_job_offset) then
    given.refuse("--auto-gpus: a heterogeneous job is several; choose their GPUs with `bft size fit`")
  end
  local plans = plans_of(job_desc)
  if #plans == 0 then
    given.refuse("--auto-gpus: no plan came with the job: submit it with an sbatch that has bftd's plug-in")
  end
  local program, processes = launcher(job_desc.script:sub(1, SCRIPT_LETTERS))
  local plan, gpus_by = first_that_agrees(job_desc, part_list, plans, processes)
  local written = fill(job_desc, part_list[plan.partition], plan, gpus_by, program)
  local why = plan.why
  if program then
    why = why .. "; " .. program .. " starts a node's processes"
  end
  local line = string.format("--auto-gpus chose %s (%s)", written, why)
  if written == "" then
    line = string.format("--auto-gpus left all as it was written (%s)", plan.why)
  end
  put(job_desc, CHOSEN, line)
  if is_given(job_desc.comment) then
    local before = job_desc.admin_comment
    job_desc.admin_comment = (is_given(before) and before .. "; " or "") .. "bft: " .. line
  else
    job_desc.comment = "bft: " .. line
  end
  return line
end

return M
