/*
 * Adds --elastic and --auto-gpus to sbatch, salloc and srun.
 *
 * It checks what the user wrote: the value travels with the job, and bftd.lua in slurmctld acts on it. For --auto-gpus it
 * asks `bft size auto` which GPUs would do, in sbatch and so as the user, and the answer travels beside the value: what
 * runs the user's own code must not be slurmctld.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "auto_gpus.h"
#include "backends.h"
#include "elastic.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first argument is part of the name under which bftd.lua finds the value. */
SPANK_PLUGIN(bftd, 1)

#define COMPLAINT_SIZE 512

/* The name under which bftd.lua finds what --auto-gpus was answered, and that under which a job finds what was chosen. */
#define ANSWER "BFTD_AUTO_GPUS"
#define CHOSEN "BFT_AUTO_GPUS"

/* The longest answer, and the longest line on what was chosen. */
#define ANSWER_SIZE 8192
#define CHOSEN_SIZE 1024

/* Where plugstack.conf does not say otherwise. */
#define BFT "/usr/bin/bft"
#define LIMIT_S 120
#define LIMIT_MOST_S 3600

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define ELASTIC_HANDED_ON "SLURM_SPANK__SLURM_SPANK_OPTION_bftd_elastic"
#define AUTO_GPUS_HANDED_ON "SLURM_SPANK__SLURM_SPANK_OPTION_bftd_auto_gpus"

/* How Slurm hands the options on to the job's processes, and what was chosen for the job. */
static const char *const inherited[] = {
	ELASTIC_HANDED_ON,
	AUTO_GPUS_HANDED_ON,
	"SLURM_SPANK_" ANSWER,
	CHOSEN,
};

/* The second line of a script that has the driver in front of it begins so. */
#define DRIVER_MARK "#BFT {"

static int on_elastic(int val, const char *value, int remote);
static int on_auto_gpus(int val, const char *value, int remote);

/* Of the command that is given here; on the job's node, of the job that this process belongs to. */
static bool is_elastic;
static char *auto_gpus; /* the value */

static struct spank_option elastic_option = {
	.name = "elastic",
	.arginfo = "MIN-MAX[,backend=" BACKENDS_CHOICE "][,sizes=1:2:4:8]",
	.usage = "train on MIN to MAX idle nodes, as they come and go (batch jobs whose script is in Python); "
		 "gpu=TYPE:N and mix choose nodes",
	.has_arg = 1,
	.val = 0,
	.cb = on_elastic,
};

static struct spank_option auto_gpus_option = {
	.name = "auto-gpus",
	.arginfo = "STEP.py:FUNCTION,global-batch=N",
	.usage = "choose partition, GPUs, CPUs and memory for this training step, where they are left out (batch jobs; "
		 "gpt:h=...,l=...,global-batch=N takes sizes in place of a step)",
	.has_arg = 1,
	.val = 0,
	.cb = on_auto_gpus,
};

/* The command of an option that only sbatch can have; NULL where this is sbatch. */
static const char *other_command(void)
{
	if (spank_context() == S_CTX_LOCAL)
		return "srun";
	return strcmp(program_invocation_short_name, "salloc") == 0 ? "salloc" : NULL;
}

static int on_elastic(int val, const char *value, int remote)
{
	char why[COMPLAINT_SIZE];

	(void)val;
	is_elastic = true;
	if (remote) /* on the job's node, where the value has been checked */
		return 0;
	if (other_command()) {
		slurm_error("--elastic is for batch jobs only, not for %s: submit the training script with "
			    "sbatch --elastic=MIN-MAX SCRIPT",
			    other_command());
		return -1;
	}
	if (elastic_check(value, why, sizeof(why)) == 0)
		return 0;
	slurm_error("%s", why);
	return -1;
}

/* Of several the last one counts, and Slurm reads the command line after the script. */
static int on_auto_gpus(int val, const char *value, int remote)
{
	char why[COMPLAINT_SIZE];

	(void)val;
	if (!remote && other_command()) {
		slurm_error("--auto-gpus is for batch jobs only, not for %s: submit the job with "
			    "sbatch --auto-gpus=STEP.py:FUNCTION,global-batch=N SCRIPT",
			    other_command());
		return -1;
	}
	if (!remote && auto_gpus_check(value, why, sizeof(why)) != 0) {
		slurm_error("%s", why);
		return -1;
	}
	free(auto_gpus);
	auto_gpus = strdup(value ? value : "");
	return auto_gpus ? 0 : -1;
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	/* Within such a job, an sbatch or srun of the user's would take the job's own options for one of theirs. */
	for (size_t i = 0; i < LENGTH(inherited); i++)
		unsetenv(inherited[i]);
	/* sbatch and salloc know only options that are registered here, not those of a static table. */
	if (spank_option_register(spank, &elastic_option) != ESPANK_SUCCESS)
		return -1;
	return spank_option_register(spank, &auto_gpus_option) == ESPANK_SUCCESS ? 0 : -1;
}

/* Slurm goes on after an error of an optional plug-in, and the job would be submitted as if nothing had been asked. */
__attribute__((noreturn)) static void submit_nothing(const char *why)
{
	slurm_error("%s", why);
	slurm_error("Nothing was submitted");
	fflush(NULL);
	_exit(1);
}

/* The arguments in plugstack.conf: bft=PATH and timeout=SECONDS. */
static void read_arguments(int ac, char *argv[], const char **bft, int *limit_s)
{
	*bft = BFT;
	*limit_s = LIMIT_S;
	for (int i = 0; i < ac; i++) {
		if (strncmp(argv[i], "bft=", strlen("bft=")) == 0)
			*bft = argv[i] + strlen("bft=");
		if (strncmp(argv[i], "timeout=", strlen("timeout=")) == 0)
			*limit_s = atoi(argv[i] + strlen("timeout="));
	}
	if (*limit_s < 1 || *limit_s > LIMIT_MOST_S)
		*limit_s = LIMIT_S;
}

/* sbatch has read all options, those of the script too, and has not made the job's description of them yet. */
int slurm_spank_init_post_opt(spank_t spank, int ac, char *argv[])
{
	static char answer[ANSWER_SIZE];
	char why[COMPLAINT_SIZE];
	const char *bft;
	int limit_s;

	if (!auto_gpus || spank_context() != S_CTX_ALLOCATOR)
		return 0;
	if (is_elastic)
		submit_nothing("--auto-gpus: an elastic job has no GPUs of its own to choose; leave --auto-gpus or --elastic out");
	read_arguments(ac, argv, &bft, &limit_s);
	if (!*answer) { /* once for a job of several components too, which bftd.lua refuses */
		slurm_info("--auto-gpus: choosing GPUs for %s (at most %d s)", auto_gpus, limit_s);
		if (auto_gpus_ask(bft, limit_s, auto_gpus, answer, sizeof(answer), why, sizeof(why)) != 0)
			submit_nothing(why);
	}
	if (spank_job_control_setenv(spank, ANSWER, answer, 1) != ESPANK_SUCCESS)
		submit_nothing("--auto-gpus: Slurm does not take the answer: tell your administrators");
	return 0;
}

static bool has_driver(const char *script)
{
	char line[512];
	int number = 0;
	FILE *file = fopen(script, "re");
	bool found = file == NULL; /* what cannot be looked at is not judged */

	while (file && number++ < 2 && fgets(line, sizeof(line), file))
		found = number == 2 && strncmp(line, DRIVER_MARK, strlen(DRIVER_MARK)) == 0;
	if (file)
		fclose(file);
	return found;
}

/* Whether the job has an option: a batch job with --export=NONE has it in its environment, and Slurm calls nothing for it. */
static bool is_handed_on(spank_t spank, const char *name)
{
	char first_letter[2];
	spank_err_t found = spank_getenv(spank, name, first_letter, sizeof(first_letter));

	return found == ESPANK_SUCCESS || found == ESPANK_NOSPACE;
}

/* A line in the job's output on what was chosen; without one, slurmctld let the job through as it was. */
static bool tell_chosen(spank_t spank)
{
	char chosen[CHOSEN_SIZE];

	if (spank_getenv(spank, CHOSEN, chosen, sizeof(chosen)) != ESPANK_SUCCESS)
		return false;
	fprintf(stderr, "bft: %s\n", chosen);
	return true;
}

/*
 * In the job, just before its script begins. Where slurmctld let the job through as it was, it knows nothing of the
 * options for want of bftd.lua: the script would train on one node of the regular queue, and without a GPU.
 */
int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
	uint32_t step;
	bool wants_gpus;
	char **script;
	int words;

	(void)ac;
	(void)argv;
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step != SLURM_BATCH_SCRIPT)
		return 0;
	wants_gpus = auto_gpus || is_handed_on(spank, AUTO_GPUS_HANDED_ON);
	if (!wants_gpus && !is_elastic && !is_handed_on(spank, ELASTIC_HANDED_ON))
		return 0;
	if (wants_gpus && tell_chosen(spank))
		return 0;
	if (wants_gpus) {
		fprintf(stderr, "bft: --auto-gpus does not work here, Slurm's controller does not know it: put the lines that "
				"`bft size fit` prints into the script, and tell your administrators\n");
		_exit(1);
	}
	if (spank_get_item(spank, S_JOB_ARGV, &words, &script) != ESPANK_SUCCESS || words < 1 || has_driver(script[0]))
		return 0;
	fprintf(stderr, "bft: --elastic does not work here, Slurm's controller does not know it: submit the script with "
			"`bft sbatch --elastic=MIN-MAX SCRIPT`, and tell your administrators\n");
	/* What this function returns counts only where plugstack.conf says `required`. This process is the task's own. */
	_exit(1);
}
