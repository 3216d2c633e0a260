#define _GNU_SOURCE /* pipe2 */
#include "auto_gpus.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The longest value: it travels in the job's environment. */
#define VALUE_LETTERS 1000
/* So long does a program that is stopped have to end what it started. */
#define GRACE_MS 3000
/* So often is looked whether it has ended, or a signal has come. */
#define LOOK_MS 100
/* Who waits for longer is told what for. */
#define TOLD_AFTER_MS 2000
/* The last words of a program that fails: its last line is told. */
#define LAST_WORDS 4096

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const int stopping[] = { SIGINT, SIGTERM, SIGHUP };

static volatile sig_atomic_t caught;

/* What is read from one pipe; what is beyond `size` is dropped, and `more` says that there was some. */
struct reading {
	int fd;
	char *text;
	size_t size, length;
	bool more;
};

int auto_gpus_check(const char *text, char *why, size_t size)
{
	static const char example[] = "for example --auto-gpus=step.py:make_step,global-batch=256";
	size_t length = text ? strlen(text) : 0;

	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)text[i]) && !strchr("_=,:.+@/~#%-", text[i])) {
			snprintf(why, size, "--auto-gpus: letters, digits and _=,:.+@/~#%%- alone: %s", example);
			return -1;
		}
	if (length == 0 || length > VALUE_LETTERS || text[0] == '-') {
		snprintf(why, size, "--auto-gpus: name a step or a model, and the global batch: %s", example);
		return -1;
	}
	return 0;
}

static void on_signal(int number)
{
	caught = number;
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* In the child, after fork: only what may be called there. */
static void become(const char *bft, const char *text, int out, int err)
{
	char *const words[] = { "bft", "size", "auto", "--", (char *)text, NULL };
	int null = open("/dev/null", O_RDONLY);
	sigset_t none;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGINT); /* where sbatch is killed and can end nothing any more */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (size_t i = 0; i < LENGTH(stopping); i++)
		signal(stopping[i], SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGCHLD, SIG_DFL);
	if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0)
		execv(bft, words);
	_exit(127);
}

/* Take what there is; returns false at the end of the pipe. */
static bool take(struct reading *reading)
{
	char rest[1024];
	size_t left = reading->size - 1 - reading->length;
	ssize_t got = read(reading->fd, left ? reading->text + reading->length : rest, left ? left : sizeof(rest));

	if (got > 0 && left)
		reading->length += (size_t)got;
	else if (got > 0)
		reading->more = true;
	return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Keep the end of what is said rather than its beginning. */
static void drop_beginning(struct reading *reading)
{
	size_t half = reading->size / 2;

	if (reading->length + 1 < reading->size)
		return;
	memmove(reading->text, reading->text + half, reading->length - half);
	reading->length -= half;
}

static bool has_ended(pid_t pid)
{
	siginfo_t info = { 0 };

	/* It is not reaped yet, so that its number stays the group's. */
	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

/* Read both pipes until the program has ended; returns false where it is stopped for its time or a signal. */
static bool listen_to(pid_t pid, struct reading *out, struct reading *err, const char *text, int limit_s)
{
	long begun_ms = now_ms(), deadline_ms = begun_ms + limit_s * 1000L;
	bool told = false;
	struct reading *const both[] = { out, err };
	struct pollfd pipes[] = { { out->fd, POLLIN, 0 }, { err->fd, POLLIN, 0 } };

	while (!caught && now_ms() < deadline_ms) {
		bool ended = has_ended(pid);

		if (!told && !ended && now_ms() - begun_ms >= TOLD_AFTER_MS) {
			fprintf(stderr, "bftd: working out GPUs for --auto-gpus=%s; this takes %d s at most\n", text, limit_s);
			told = true;
		}
		poll(pipes, LENGTH(pipes), ended ? 0 : LOOK_MS);
		for (size_t i = 0; i < LENGTH(pipes); i++) {
			drop_beginning(err);
			if (pipes[i].revents && !take(both[i]))
				pipes[i].fd = -1;
			else if (pipes[i].revents)
				ended = false; /* there may be more */
		}
		if (ended)
			return true;
	}
	return false;
}

/* End the program and all of its group; returns its status, or -1. */
static int finish(pid_t pid, bool stopped)
{
	long deadline_ms = now_ms() + GRACE_MS;
	struct timespec look = { 0, LOOK_MS * 1000000L };
	int status = -1;

	if (stopped) {
		kill(-pid, SIGINT);
		while (!has_ended(pid) && now_ms() < deadline_ms)
			nanosleep(&look, NULL);
	}
	kill(-pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return status;
}

/* The last line that is not empty, with nothing in it that a terminal would act on. */
static const char *last_line(char *text)
{
	size_t length = strlen(text);
	char *line;

	while (length && isspace((unsigned char)text[length - 1]))
		text[--length] = '\0';
	line = strrchr(text, '\n');
	line = line ? line + 1 : text;
	for (char *c = line; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = '?';
	if (strncmp(line, "bft: ", 5) == 0)
		line += 5;
	return line;
}

static bool is_one_line(const char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			return false;
	return true;
}

static int judge(int status, const struct reading *out, const char *said, char *why, size_t size)
{
	if (WIFSIGNALED(status)) { /* its last line is of what it was doing */
		snprintf(why, size, "--auto-gpus: the program that chooses GPUs was ended by signal %d: choose GPUs with "
				    "`bft size fit`", WTERMSIG(status));
		return -1;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		snprintf(why, size, "--auto-gpus: %s", *said ? said : "the program that chooses GPUs failed without a word");
		return -1;
	}
	if (out->length > 0 && out->text[out->length - 1] == '\n')
		out->text[out->length - 1] = '\0';
	if (out->more || out->text[0] == '\0' || !is_one_line(out->text)) {
		snprintf(why, size, "--auto-gpus: the program that chooses GPUs gave no answer that can be read: "
				    "tell your administrators");
		return -1;
	}
	return 0;
}

int auto_gpus_ask(const char *bft, int limit_s, const char *text, char *answer, size_t size, char *why, size_t why_size)
{
	char last_words[LAST_WORDS];
	struct reading out = { .text = answer, .size = size }, err = { .text = last_words, .size = sizeof(last_words) };
	struct sigaction before[LENGTH(stopping)], ours = { .sa_handler = on_signal };
	struct sigaction children, usual = { .sa_handler = SIG_DFL };
	int to_out[2], to_err[2], status, number;
	bool in_time;
	pid_t pid;

	if (access(bft, X_OK) != 0) {
		snprintf(why, why_size, "--auto-gpus does not work on this host: %s cannot be run: tell your administrators", bft);
		return -1;
	}
	if (pipe2(to_out, O_CLOEXEC) != 0)
		goto failed;
	if (pipe2(to_err, O_CLOEXEC) != 0) {
		close(to_out[0]);
		close(to_out[1]);
		goto failed;
	}
	caught = 0;
	sigaction(SIGCHLD, &usual, &children); /* ignored ones could not be waited for */
	for (size_t i = 0; i < LENGTH(stopping); i++) {
		sigaction(stopping[i], NULL, &before[i]);
		if (before[i].sa_handler != SIG_IGN)
			sigaction(stopping[i], &ours, NULL);
	}
	pid = fork();
	if (pid == 0)
		become(bft, text, to_out[1], to_err[1]);
	close(to_out[1]);
	close(to_err[1]);
	out.fd = to_out[0];
	err.fd = to_err[0];
	status = -1;
	in_time = false;
	if (pid > 0) {
		setpgid(pid, pid);
		fcntl(out.fd, F_SETFL, O_NONBLOCK);
		fcntl(err.fd, F_SETFL, O_NONBLOCK);
		in_time = listen_to(pid, &out, &err, text, limit_s);
		status = finish(pid, !in_time);
	}
	close(out.fd);
	close(err.fd);
	out.text[out.length] = err.text[err.length] = '\0';
	number = caught;
	for (size_t i = 0; i < LENGTH(stopping); i++)
		sigaction(stopping[i], &before[i], NULL);
	sigaction(SIGCHLD, &children, NULL);
	if (number)
		raise(number);
	if (pid < 0)
		goto failed;
	if (!in_time) {
		snprintf(why, why_size, "--auto-gpus: no answer in %d s; choose GPUs with `bft size fit`, which shows why it "
					"takes so long", limit_s);
		return -1;
	}
	return judge(status, &out, last_line(err.text), why, why_size);
failed:
	snprintf(why, why_size, "--auto-gpus: the program that chooses GPUs cannot be started: %s", strerror(errno));
	return -1;
}
