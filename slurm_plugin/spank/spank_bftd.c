/*
 * Adds --elastic to sbatch, salloc and srun.
 *
 * It checks what the user wrote and nothing else: the value travels with the job, and bftd.lua in slurmctld acts on it.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
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

/* How Slurm hands the option on to the job's processes. */
#define INHERITED "SLURM_SPANK__SLURM_SPANK_OPTION_bftd_elastic"

/* The second line of a script that has the driver in front of it begins so. */
#define DRIVER_MARK "#BFT {"

static int on_elastic(int val, const char *value, int remote);

static bool asked_for; /* on the job's node: by the job that this process belongs to */

static struct spank_option elastic_option = {
	.name = "elastic",
	.arginfo = "MIN-MAX[,backend=" BACKENDS_CHOICE "][,sizes=1:2:4:8]",
	.usage = "train on MIN to MAX idle nodes, as they come and go (batch jobs whose script is in Python); "
		 "gpu=TYPE:N and mix choose nodes",
	.has_arg = 1,
	.val = 0,
	.cb = on_elastic,
};

static int only_batch(const char *command)
{
	slurm_error("--elastic is for batch jobs only, not for %s: submit the training script with "
		    "sbatch --elastic=MIN-MAX SCRIPT",
		    command);
	return -1;
}

static int on_elastic(int val, const char *value, int remote)
{
	char why[COMPLAINT_SIZE];

	(void)val;
	if (remote) { /* on the job's node, where the value has been checked */
		asked_for = true;
		return 0;
	}
	if (spank_context() == S_CTX_LOCAL)
		return only_batch("srun");
	if (strcmp(program_invocation_short_name, "salloc") == 0)
		return only_batch("salloc");
	if (elastic_check(value, why, sizeof(why)) == 0)
		return 0;
	slurm_error("%s", why);
	return -1;
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	/* Within an elastic job, an sbatch or srun of the user's would take the job's own option for one of theirs. */
	unsetenv(INHERITED);
	/* sbatch and salloc know only options that are registered here, not those of a static table. */
	return spank_option_register(spank, &elastic_option) == ESPANK_SUCCESS ? 0 : -1;
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

/*
 * In the job, just before its script begins. slurmctld let the job through as it was: without bftd.lua it knows nothing
 * of the option, and the script would train on one node of the regular queue.
 */
int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
	uint32_t step;
	char **script;
	int words;

	(void)ac;
	(void)argv;
	if (!asked_for || spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step != SLURM_BATCH_SCRIPT)
		return 0;
	if (spank_get_item(spank, S_JOB_ARGV, &words, &script) != ESPANK_SUCCESS || words < 1 || has_driver(script[0]))
		return 0;
	fprintf(stderr, "bft: --elastic does not work here, Slurm's controller does not know it: submit the script with "
			"`bft sbatch --elastic=MIN-MAX SCRIPT`, and tell your administrators\n");
	/* What this function returns counts only where plugstack.conf says `required`. This process is the task's own. */
	_exit(1);
}
