#define _GNU_SOURCE /* memmem */
#include "elastic.h"

#include "backends.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counts of up to nine digits fit into 32 bits. */
#define COUNT_DIGITS 9
/* The longest type of a GPU. */
#define TYPE_LETTERS 64
/* So many types of GPUs may be left out. */
#define TYPES_MOST 32
/* The longest id of a trainer. */
#define ID_LETTERS 128
/* So much of what the user wrote is repeated in a message. */
#define SHOWN 100

/* What is behind it is a regular expression, to the end of the value. */
#define PROGRESS ",progress="

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char *const backends[] = { BACKENDS_LIST };

/* A piece of the user's text: not ended by a NUL. */
struct piece {
	const char *start;
	size_t length;
};

struct range {
	unsigned long low, high;
};

/* Where the complaint goes, and what it is about: the whole value, and the option in it. */
struct complaint {
	const char *text;
	struct piece option;
	char *why;
	size_t size;
};

/* For the format "%.*s". */
#define SHOW(piece) ((piece).length < SHOWN ? (int)(piece).length : SHOWN), (piece).start

__attribute__((format(printf, 2, 3))) static bool refuse(const struct complaint *complaint, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(complaint->why, complaint->size, format, arguments);
	va_end(arguments);
	return false;
}

static bool is(struct piece piece, const char *word)
{
	return piece.length == strlen(word) && strncmp(piece.start, word, piece.length) == 0;
}

/* Cut the part before the next `separator` off `rest`; returns false when there was none, with all of `rest` as part. */
static bool cut(struct piece *rest, char separator, struct piece *part)
{
	const char *found = memchr(rest->start, separator, rest->length);
	size_t length = found ? (size_t)(found - rest->start) : rest->length;

	*part = (struct piece){ rest->start, length };
	rest->start += length + (found ? 1 : 0);
	rest->length -= length + (found ? 1 : 0);
	return found != NULL;
}

static bool is_count(struct piece piece, unsigned long *count)
{
	*count = 0;
	for (size_t i = 0; i < piece.length; i++) {
		if (!isdigit((unsigned char)piece.start[i]))
			return false;
		if (i < COUNT_DIGITS)
			*count = *count * 10 + (unsigned long)(piece.start[i] - '0');
	}
	return piece.length >= 1 && piece.length <= COUNT_DIGITS;
}

/* A decimal number above zero and finite: strtod alone would take 0x10 and nan as well. */
static bool is_positive(struct piece piece)
{
	char number[64];
	char *end;
	double value;

	if (piece.length == 0 || piece.length >= sizeof(number))
		return false;
	memcpy(number, piece.start, piece.length);
	number[piece.length] = '\0';
	if (strspn(number, "0123456789.eE+-") != piece.length)
		return false;
	value = strtod(number, &end);
	return *end == '\0' && value > 0 && value < HUGE_VAL;
}

static bool check_range(struct piece head, struct range *range, const struct complaint *complaint)
{
	struct piece low, rest = head;
	bool has_high = cut(&rest, '-', &low);

	if (!is_count(low, &range->low) || (has_high && !is_count(rest, &range->high)))
		return refuse(complaint, "--elastic=%.*s: give the nodes as MIN-MAX, for example --elastic=1-8", SHOWN,
			      complaint->text);
	if (!has_high)
		range->high = range->low;
	if (range->low < 1)
		return refuse(complaint,
			      "--elastic=%.*s: the smallest number of nodes is 1; a trainer may wait at 0 in any case", SHOWN,
			      complaint->text);
	if (range->low > range->high)
		return refuse(complaint, "--elastic=%.*s: MIN is above MAX; did you mean --elastic=%lu-%lu?", SHOWN,
			      complaint->text, range->high, range->low);
	return true;
}

static bool check_backend(struct piece value, const struct range *range, const struct complaint *complaint)
{
	(void)range;
	for (size_t i = 0; i < LENGTH(backends); i++)
		if (is(value, backends[i]))
			return true;
	return refuse(complaint, "--elastic: unknown back-end '%.*s'; known: " BACKENDS_SAID, SHOW(value));
}

static bool check_sizes(struct piece value, const struct range *range, const struct complaint *complaint)
{
	struct piece rest = value, part;
	unsigned long size;
	bool more = true;

	while (more) {
		more = cut(&rest, ':', &part);
		if (!is_count(part, &size))
			return refuse(complaint,
				      "--elastic: %.*s: give node counts between colons, for example sizes=1:2:4:8",
				      SHOW(complaint->option));
		if (size < range->low || size > range->high)
			return refuse(complaint,
				      "--elastic: size %lu is outside %lu-%lu; leave it out or widen the range", size,
				      range->low, range->high);
	}
	return true;
}

static bool check_positive(struct piece value, const struct range *range, const struct complaint *complaint)
{
	(void)range;
	return is_positive(value) || refuse(complaint, "--elastic: %.*s: give a positive number", SHOW(complaint->option));
}

static bool check_workers(struct piece value, const struct range *range, const struct complaint *complaint)
{
	unsigned long count;

	(void)range;
	if (is_count(value, &count) && count >= 1)
		return true;
	return refuse(complaint, "--elastic: %.*s: give a whole number of at least 1", SHOW(complaint->option));
}

static bool is_type(struct piece piece)
{
	bool named = false;

	for (size_t i = 0; i < piece.length; i++) {
		if (!isalnum((unsigned char)piece.start[i]) && !strchr("_.-", piece.start[i]))
			return false;
		named = named || !isdigit((unsigned char)piece.start[i]);
	}
	return named && piece.length <= TYPE_LETTERS;
}

/* The id of a trainer: a job's number mostly, with @CLUSTER behind it or not. */
static bool check_resume(struct piece value, const struct range *range, const struct complaint *complaint)
{
	bool fits = value.length >= 1 && value.length <= ID_LETTERS && isalnum((unsigned char)value.start[0]);

	(void)range;
	for (size_t i = 0; fits && i < value.length; i++)
		fits = isalnum((unsigned char)value.start[i]) || strchr("_.-@", value.start[i]);
	return fits || refuse(complaint,
			      "--elastic: %.*s: give the id of a job, as bft checkpoints ls shows it", SHOW(complaint->option));
}

/* TYPE, TYPE:COUNT or COUNT. */
static bool check_gpu(struct piece value, const struct range *range, const struct complaint *complaint)
{
	struct piece type, rest = value;
	unsigned long count = 1;
	bool counted = cut(&rest, ':', &type);

	(void)range;
	if (counted ? is_type(type) && is_count(rest, &count) : is_type(type) || is_count(type, &count))
		if (count >= 1)
			return true;
	return refuse(complaint, "--elastic: %.*s: give a type, a number or both, for example gpu=a100:4",
		      SHOW(complaint->option));
}

static bool check_without(struct piece value, const struct range *range, const struct complaint *complaint)
{
	struct piece rest = value, part;
	bool more = true;
	size_t count = 0;

	(void)range;
	while (more) {
		more = cut(&rest, ':', &part);
		if (++count > TYPES_MOST || !is_type(part))
			return refuse(complaint,
				      "--elastic: %.*s: give types of GPUs between colons, for example without=k80:v100",
				      SHOW(complaint->option));
	}
	return true;
}

/* estimate or estimate:BATCH. */
static bool check_curve(struct piece value, const struct range *range, const struct complaint *complaint)
{
	struct piece word, rest = value;
	unsigned long count = 1;
	bool counted = cut(&rest, ':', &word);

	(void)range;
	if (is(word, "estimate") && (!counted || (is_count(rest, &count) && count >= 1)))
		return true;
	return refuse(complaint,
		      "--elastic: %.*s: give curve=estimate, or with the batch of one worker curve=estimate:32",
		      SHOW(complaint->option));
}

/* No letter of these means anything to a shell, to Slurm's comments or to JSON. */
static bool is_plain(struct piece piece)
{
	for (size_t i = 0; i < piece.length; i++)
		if (!isalnum((unsigned char)piece.start[i]) && !strchr("_=:.+@/~#%-", piece.start[i]))
			return false;
	return piece.length >= 1;
}

static bool check_state(struct piece value, const struct range *range, const struct complaint *complaint)
{
	(void)range;
	if (is_plain(value) && value.length >= 2 && value.start[0] == '/')
		return true;
	return refuse(complaint, "--elastic: %.*s: give a folder from / on, on a file system that all nodes have",
		      SHOW(complaint->option));
}

static bool check_container(struct piece value, const struct range *range, const struct complaint *complaint)
{
	(void)range;
	/* Begun with a dash, it would be an option of the container runtime's. */
	if (is_plain(value) && value.start[0] != '-')
		return true;
	return refuse(complaint, "--elastic: %.*s: give an image as the site's container runtime takes it",
		      SHOW(complaint->option));
}

/* CPUS:MEMORY, "profile" or "no". */
static bool check_share(struct piece value, const struct range *range, const struct complaint *complaint)
{
	struct piece cpus, memory = value;
	unsigned long count = 0, size = 0;
	char unit;

	(void)range;
	if (is(value, "no") || is(value, "profile"))
		return true;
	if (cut(&memory, ':', &cpus) && memory.length >= 2) {
		unit = memory.start[--memory.length];
		if (strchr("MGT", unit) && is_count(cpus, &count) && count >= 1 && is_count(memory, &size) && size >= 1)
			return true;
	}
	return refuse(complaint,
		      "--elastic: %.*s: give CPUs and memory of a node such as share=4:16G, share=profile for those that "
		      "bft size cpu found, or share=no for whole nodes",
		      SHOW(complaint->option));
}

/* Which groups the expression names: only Python can tell whether it is one, and the driver does. */
static bool check_progress(struct piece value, const struct range *range, const struct complaint *complaint)
{
	static const char opening[] = "(?P<";
	const char *end = value.start + value.length, *at = value.start;
	bool reads = false, known = true;

	(void)range;
	while (known && (at = memmem(at, (size_t)(end - at), opening, strlen(opening))) != NULL) {
		struct piece name = { at += strlen(opening), 0 };

		while (at < end && (isalnum((unsigned char)*at) || *at == '_'))
			at++;
		name.length = (size_t)(at - name.start);
		if (at == end || *at != '>')
			continue;
		reads = reads || is(name, "step") || is(name, "samples");
		known = is(name, "step") || is(name, "samples") || is(name, "loss");
	}
	return (known && reads) || refuse(complaint,
					  "--elastic: %.*s: name a group step or samples, and loss if it is there, "
					  "for example progress=step (?P<step>[0-9]+)",
					  SHOW(complaint->option));
}

static const struct {
	const char *key;
	bool (*check)(struct piece, const struct range *, const struct complaint *);
} options[] = {
	{ "backend", check_backend }, { "sizes", check_sizes },	  { "weight", check_positive },
	{ "up", check_positive },     { "down", check_positive }, { "workers", check_workers },
	{ "gpu", check_gpu },	      { "without", check_without }, { "curve", check_curve }, { "frozen", check_positive }, { "resume", check_resume },
	{ "state", check_state },     { "container", check_container }, { "share", check_share },
};

static bool check_option(struct piece part, const struct range *range, struct complaint *complaint)
{
	struct piece key, value = part;

	complaint->option = part;
	if (is(part, "mix"))
		return true;
	if (cut(&value, '=', &key))
		for (size_t i = 0; i < LENGTH(options); i++)
			if (is(key, options[i].key))
				return options[i].check(value, range, complaint);
	return refuse(complaint,
		      "--elastic: unknown option '%.*s'; known: backend=, sizes=, weight=, up=, down=, workers=, gpu=, "
		      "without=, curve=, frozen=, resume=, state=, container=, share=, progress=, mix",
		      SHOW(part));
}

/* Only an expression holds spaces. What is refused here is not repeated in the message: that goes to a terminal. */
static bool check_letters(const char *expression, const struct complaint *complaint)
{
	for (const char *c = complaint->text; *c; c++) {
		bool within = expression && c >= expression;

		if (*c > ' ' && *c <= '~')
			continue;
		if (within && *c == ' ')
			continue;
		return refuse(complaint,
			      within ? "--elastic: progress=: write other letters than those of ASCII as Python does, "
				       "\\xe9 for example" :
				       "--elastic: no spaces and ASCII alone: give the nodes as MIN-MAX, "
				       "for example --elastic=1-8");
	}
	return true;
}

int elastic_check(const char *text, char *why, size_t size)
{
	struct complaint complaint = { .text = text ? text : "", .why = why, .size = size };
	const char *expression = strstr(complaint.text, PROGRESS);
	struct piece rest = { complaint.text, strlen(complaint.text) }, part, value;
	struct range range;
	bool more;

	if (!check_letters(expression, &complaint))
		return -1;
	if (expression) {
		value.start = expression + strlen(PROGRESS);
		value.length = strlen(value.start);
		rest.length = (size_t)(expression - rest.start);
	}
	more = cut(&rest, ',', &part);
	if (!check_range(part, &range, &complaint))
		return -1;
	while (more) {
		more = cut(&rest, ',', &part);
		if (!check_option(part, &range, &complaint))
			return -1;
	}
	if (!expression)
		return 0;
	complaint.option = (struct piece){ expression + 1, strlen(expression + 1) };
	return check_progress(value, &range, &complaint) ? 0 : -1;
}
