/* The values of libivycomm's C interface (ivycomm.h): codes, types of elements, operations, and the
 * structs that calls take. Every struct begins with its own size, which the caller sets, so that it
 * can grow.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ivy_comm ivy_comm; /* A communicator: this process's seat in a group of ranks. */
typedef struct ivy_work ivy_work; /* An operation under way. */

/* Numbered as gRPC's codes. */
typedef enum ivy_code {
  IVY_OK = 0,
  IVY_CANCELLED = 1,          /* ivy_comm_abort or ivy_work_abort, here or on another rank. */
  IVY_INVALID_ARGUMENT = 3,   /* Seen before anything was sent; the communicator is whole. */
  IVY_DEADLINE_EXCEEDED = 4,  /* The timeout; the text names the ranks that did not come. */
  IVY_NOT_FOUND = 5,          /* The job's store has no such key. */
  IVY_RESOURCE_EXHAUSTED = 8, /* Memory, descriptors, or one of the limits below. */
  IVY_FAILED_PRECONDITION =
      9,            /* Not initialised, finalised, forked, or two sources that disagree. */
  IVY_ABORTED = 10, /* Ranks called different things; the text shows both. */
  IVY_INTERNAL = 13,
  IVY_UNAVAILABLE = 14, /* A rank died or its host was lost; the text names it. */
  IVY_UNAUTHENTICATED = 16
} ivy_code;

/* IVY_I8 = 0, IVY_U8 = 1, ...: every type and operation is a row of ivycomm_operations.def. */
typedef enum ivy_dtype {
#define IVY_ELEMENT(name, number, ...) IVY_##name = number,
#include "ivycomm_operations.def"
} ivy_dtype;

/* What each means for each type: docs/collectives.md, "Reduction". */
typedef enum ivy_op {
#define IVY_REDUCTION(name, number, ...) IVY_##name = number,
#include "ivycomm_operations.def"
} ivy_op;

#define IVY_IN_PLACE ((const void*)1)
#define IVY_ANY_SOURCE (-1)
#define IVY_ANY_TAG (-1)
#define IVY_FOREVER ((int64_t)-1)

typedef enum ivy_failure_kind {
  IVY_FAILURE_NONE = 0,
  IVY_FAILURE_RANK_DIED = 1, /* signal or exit_code says how. */
  IVY_FAILURE_HOST_LOST = 2,
  IVY_FAILURE_MISMATCH = 3,
  IVY_FAILURE_TIMEOUT = 4,
  IVY_FAILURE_ABORTED = 5,
  IVY_FAILURE_TRANSPORT = 6,
  IVY_FAILURE_OTHER = 7
} ivy_failure_kind;

typedef struct ivy_failure {
  size_t struct_bytes; /* sizeof(ivy_failure), set by the caller. */
  int32_t kind;        /* ivy_failure_kind */
  int32_t rank;        /* World rank to blame, or -1. */
  int32_t pid;         /* Its process, or 0. */
  int32_t signal;      /* That killed it, or 0. */
  int32_t exit_code;   /* With which it exited, or -1. */
  uint64_t sequence;   /* Number of the operation on its communicator, from 1. */
  char host[64];
  char operation[32]; /* "all_reduce" */
} ivy_failure;
typedef struct ivy_options {
  size_t struct_bytes; /* sizeof(ivy_options), set by the caller. */
  /* NULL or "env://"; "tcp://HOST:PORT", where rank 0 will listen; "file:///PATH", which all see;
   * "self://": a world of one. */
  const char* init_method;
  int32_t rank;       /* -1: from the environment. */
  int32_t world_size; /* -1: from the environment. */
  int64_t timeout_ms; /* For ivy_init and operations that name none; 0: 600,000; IVY_FOREVER. */
} ivy_options;
/* A group that only its members make. */
typedef struct ivy_members {
  size_t struct_bytes; /* sizeof(ivy_members), set by the caller. */
  const char* name;    /* At most 40 bytes; no group of this world has had it. */
  const int32_t* ranks;
  int64_t timeout_ms; /* 0: the communicator's; of the group's operations, too. */
  int32_t rank_count;
} ivy_members;

/* Flags of a call on device memory. */
#define IVY_ENQUEUE                                                            \
  1u /* Return once the operation is on the stream: what the caller puts there \
        later finds the result. What fails after that is told by the next call. */
#define IVY_DEVICE_MEMORY 2u /* The buffers are device memory: for ranks that give none. */
#define IVY_ON_DEVICE                                                     \
  4u /* The buffers are memory of `device`. The caller is believed, which \
        saves a question to the driver for each of them. */

/* How one call is made; NULL = all zero. */
typedef struct ivy_call {
  size_t struct_bytes; /* sizeof(ivy_call), set by the caller. */
  int64_t timeout_ms;  /* 0: the communicator's. */
  ivy_work** work;     /* Not NULL: return at once; the operation's handle is put here. */
  double factor;       /* For IVY_PREMUL_SUM. */
  void* stream;   /* For device memory: cudaStream_t or hipStream_t; NULL: the default stream. */
  uint64_t flags; /* IVY_ENQUEUE, IVY_DEVICE_MEMORY, IVY_ON_DEVICE. */
  /* Not NULL: asked on the calling thread while a call that blocks waits, every 25 ms or so, never
   * by one that has waited for less. Another answer than 0 ends the call with IVY_CANCELLED and
   * breaks the communicator, as ivy_comm_abort does. It may call ivy_comm_abort, but no operation
   * on this communicator that blocks: IVY_FAILED_PRECONDITION. */
  int (*interrupt)(void* context);
  void* interrupt_context;
  int32_t device; /* With IVY_ON_DEVICE: its number, as the driver counts. */
} ivy_call;

typedef struct ivy_message {
  size_t struct_bytes;
  int32_t source;
  int32_t tag;
  uint64_t bytes;
} ivy_message;

/* Bytes of the caller's, or of the library's, which ivy_bytes_free frees. It never grows. */
typedef struct ivy_bytes {
  void* data; /* Only read where it is given; NULL will do without bytes. */
  size_t bytes;
} ivy_bytes;

/* A compare-and-set in the job's store. It never grows. */
typedef struct ivy_swap {
  const ivy_bytes* expected; /* NULL: the key must be missing. */
  ivy_bytes desired;
  int32_t stored;    /* Set by the call, as `current`. */
  ivy_bytes current; /* The value afterwards; data is NULL where the key is missing. */
} ivy_swap;

/* A meeting in the job's store. It never grows. */
typedef struct ivy_store_meeting {
  uint32_t size;    /* How many members meet: all of a round say the same. */
  uint32_t member;  /* Below size. A member counts once in each round. */
  uint64_t arrival; /* 0, and set by the call: the same arrival goes on where the call timed out. */
  uint64_t round;   /* Set by the call: from 1. */
} ivy_store_meeting;

enum {
  IVY_KEY_SET = 1,
  IVY_KEY_DELETED = 2,
  IVY_KEYS_MISSED = 3 /* Changes may have been missed before this one: look at the keys again. */
};

/* What a watch of the job's store tells. It never grows. */
typedef struct ivy_store_change {
  int32_t what;    /* IVY_KEY_SET and so on. */
  ivy_bytes key;   /* Allocated, as the value; data is NULL where there is none. */
  ivy_bytes value; /* The new value. */
} ivy_store_change;
#ifdef __cplusplus
}
#endif
