// SPDX-License-Identifier: Apache-2.0
/* The C interface of libivycomm: rank, world size, collectives, messages and the job's store for
 * a worker process. All other interfaces (ivycomm.hpp, the Python package) are built on it.
 *
 * Lifetime: ivy_init creates the world communicator; ivy_finalize ends it and every group made
 * from it. A process may call ivy_init again afterwards. Under `ivyrun`, torchrun, mpirun,
 * mpiexec or srun no options are needed. Without a launcher the world has one rank, unless
 * ivy_options specifies more.
 *
 * Results: every function returns an ivy_code (IVY_OK = 0) unless documented otherwise.
 * ivy_last_error() and ivy_last_failure() describe the last failed call of the calling thread.
 *
 * Threads: functions may be called from any thread. Calls on one communicator run one at a time,
 * in the order in which they were made, and that order must be the same on all its ranks.
 * Different communicators are independent. Point-to-point calls are ordered only among
 * themselves, by pair and tag.
 *
 * Buffers: dense memory of any alignment. All buffers of a call must be on the host, or all on
 * one device; a buffer without elements may be NULL. The library recognises device memory by its
 * address and transfers it with NCCL; see ivy_call.stream and docs/nccl.md. `send` and `recv`
 * must not overlap unless they may be the same. `send` = IVY_IN_PLACE means that the input is
 * already at its position in `recv`; for scatter at the root, `recv` = IVY_IN_PLACE leaves the
 * root's part where it is in `send`. The buffers of an asynchronous call belong to the library
 * until ivy_work_wait returns.
 *
 * Errors: a failed operation breaks the communicator. Every later call on it returns the same
 * error on every rank, the contents of output buffers are undefined, and no other process writes
 * to this process's memory. A broken world can only be ended (ivy_finalize) or repaired
 * (ivy_comm_shrink, ivy_comm_grow), a broken group only freed. ivy_comm_group_of_members and the
 * job's store work even then. IVY_INVALID_ARGUMENT is found before anything is sent and breaks
 * nothing.
 *
 * Fork: while a world exists, a forked child has no communicators: its calls return
 * IVY_FAILED_PRECONDITION and change nothing. Only read-only functions (ivy_comm_rank,
 * ivy_last_error, ...) and ivy_bytes_free work there. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ivycomm_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define IVY_API __attribute__((visibility("default")))
#define IVY_ABI_VERSION 1

/* ---- Errors and versions --------------------------------------------------------------------- */

/* Returns the text of this thread's last failure: what failed, where, why and what to do. Valid
 * until this thread's next call. */
IVY_API const char* ivy_last_error(void);

/* Returns the details of this thread's last failure: the rank that caused it and how that rank's
 * process ended. Returns IVY_INVALID_ARGUMENT if struct_bytes is not set. */
IVY_API int ivy_last_failure(ivy_failure* failure);

IVY_API const char* ivy_code_name(int code); /* "Unavailable" */
IVY_API const char* ivy_version(void);       /* "0.1.0" */
IVY_API int ivy_abi_version(void);

/* ---- Lifetime -------------------------------------------------------------------------------- */

/* Joins the job and returns the world communicator. `options` may be NULL. Waits until every
 * rank has joined, at most for the timeout; the error then names the missing ranks. */
IVY_API int ivy_init(const ivy_options* options, ivy_comm** world);
/* Ends `world` and all groups made from it, whatever the result: later calls on them return
 * IVY_FAILED_PRECONDITION, as on a freed group.
 * Some operations let a rank return before the others have started (broadcast, reduce, gather,
 * scatter, scan, exscan, all_to_all_v). If the world's last operation was one of them, this call
 * waits for the other ranks, within the world's timeout, and returns an error if they called a
 * different operation or a rank has died. It also waits for asynchronous sends as long as their
 * receivers make progress: a send of which nothing was received for 10 s, or whose timeout
 * expired, is an error. Completed sends reach their receivers even after this call. It waits for
 * operations enqueued on a device, and otherwise for no other rank.
 * No other thread may be in a call on `world` or on one of its groups, except ivy_comm_free, for
 * which this call waits. */
IVY_API int ivy_finalize(ivy_comm* world);

/* Properties of a communicator. These functions are cheap and cannot fail on a valid
 * communicator; on one that has ended they return -1 or "". */
IVY_API int ivy_comm_rank(const ivy_comm* comm);
IVY_API int ivy_comm_size(const ivy_comm* comm);
IVY_API int ivy_comm_local_rank(
    const ivy_comm* comm); /* Among this communicator's ranks on this host. */
IVY_API int ivy_comm_local_size(const ivy_comm* comm);
IVY_API int ivy_comm_node_rank(
    const ivy_comm* comm); /* Index of this host among the communicator's hosts. */
IVY_API int ivy_comm_node_count(const ivy_comm* comm);
/* Returns -1 if `comm` has no such rank. */
IVY_API int ivy_comm_world_rank(const ivy_comm* comm, int rank);
/* Returns the source that assigned this rank: "ivyrun (IVY_RANK=1, IVY_WORLD_SIZE=4)", "a world
 * of one". Valid until ivy_finalize. */
IVY_API const char* ivy_comm_source(const ivy_comm* comm);
IVY_API const char* ivy_comm_name(const ivy_comm* comm); /* "world", "world/3" */

/* Groups. Every rank of `comm` calls ivy_comm_group and ivy_comm_split, in the same order among
 * its other operations.
 * ivy_comm_group: `ranks` are ranks of `comm`, in the order of their new ranks; *group is NULL
 * on all other ranks.
 * ivy_comm_split: makes one group per color, ordered by key, then by rank; a rank with color < 0
 * joins none.
 * ivy_comm_free: frees this rank's handle of a group, even if it returns an error. It waits for
 * no other rank, but for operations enqueued on a device, and for asynchronous sends as
 * ivy_finalize does. It does not wait for an unfinished asynchronous collective: freeing the group
 * then breaks it on every rank (IVY_CANCELLED), so wait for the work first. Returns IVY_ABORTED if
 * this rank's last operation differs from the one that another rank has called in its place; ranks
 * that have not called theirs yet are not compared. */
IVY_API int ivy_comm_group(ivy_comm* comm, const int32_t* ranks, int32_t rank_count,
                           ivy_comm** group);
IVY_API int ivy_comm_split(ivy_comm* comm, int32_t color, int32_t key, ivy_comm** group);
/* Makes a group; only its members call this. It uses the job's store and also works if `comm` is
 * broken. The members are ranks of `comm` and include this process.
 * Returns IVY_FAILED_PRECONDITION if the members named different ranks, IVY_DEADLINE_EXCEEDED if a
 * member did not join (the text names it), and IVY_UNAVAILABLE if a member has died. */
IVY_API int ivy_comm_group_of_members(ivy_comm* comm, const ivy_members* members, ivy_comm** group);
IVY_API int ivy_comm_free(ivy_comm* group);

/* Repairs a world in this process after a rank has died. The handle then refers to the new
 * world, and every group made from the old one has ended. Every survivor calls the same function
 * of the two, whatever operation it was in; the first call interrupts the operations of the
 * others (IVY_CANCELLED).
 *   ivy_comm_shrink: the new world has the survivors, in their order, with dense ranks. If no
 *   rank has died it has all of them.
 *   ivy_comm_grow: the new world has all ranks of the job, as at the start. The launcher restarts
 *   the lost ranks (IVY_REJOIN is set there); they call ivy_init, which waits for the repair.
 * `call` may be NULL. Its timeout covers the whole repair; the default is the world's. All
 * survivors get the same result. They return IVY_DEADLINE_EXCEEDED if ranks are missing (the text
 * names them), IVY_ABORTED if the ranks called different functions of the two, and IVY_CANCELLED
 * if ivy_comm_abort was called on the world during the repair. IVY_FAILED_PRECONDITION is also
 * returned on a rank that the others believed dead and have continued without. After an error no
 * world exists until one of the two functions is called again; ivy_finalize works, too. A rank
 * that dies during the repair is left out (shrink) or waited for (grow). No other thread may be in
 * a call on the world or its groups. Registered memory is kept. */
IVY_API int ivy_comm_shrink(ivy_comm* world, const ivy_call* call);
IVY_API int ivy_comm_grow(ivy_comm* world, const ivy_call* call);
/* Returns how many times the launcher restarted this rank before this process: 0 in the first
 * one. */
IVY_API int ivy_restart_count(void);

/* Breaks the communicator on every rank and wakes all waiting calls within 10 ms. Without
 * ivyrun, ranks on other hosts learn of it from rank 0's store within 50 ms if the store
 * answers, otherwise when their connections close. Callable from any thread. */
IVY_API int ivy_comm_abort(ivy_comm* comm, const char* reason);

/* Sets up NCCL for a communicator before its first collective on device memory, which would
 * otherwise do it. Every rank calls this. `device` is the device's number in this process, or -1
 * for the current device. If NCCL cannot be used on some rank, every rank gets an error that names
 * that rank and the fix. */
IVY_API int ivy_prepare_device(ivy_comm* comm, int device, const ivy_call* call);
/* Sets the directories in which Python looks for packages, separated by ':'; pip may have
 * installed NCCL there. Call it before a device is used. */
IVY_API int ivy_set_package_folders(const char* folders);

/* ---- Operations ------------------------------------------------------------------------------ */

/* Counts are numbers of elements. `send` is this rank's input, `recv` its output. */

/* recv[i] = op over all ranks of send[i]. */
IVY_API int ivy_all_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                           int op, const ivy_call* call);
/* Several all_reduces as one operation. All parts have the same type and operation; each part
 * has the same length on every rank. */
IVY_API int ivy_all_reduce_coalesced(ivy_comm* comm, size_t parts, const void* const* send,
                                     void* const* recv, const size_t* counts, int dtype, int op,
                                     const ivy_call* call);
/* As all_reduce, but only `root` receives the result; `recv` may be NULL on other ranks. */
IVY_API int ivy_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, int root, const ivy_call* call);
/* Copies the root's `buffer` to the `buffer` of all other ranks. */
IVY_API int ivy_broadcast(ivy_comm* comm, void* buffer, size_t count, int dtype, int root,
                          const ivy_call* call);
/* recv = [send of rank 0, send of rank 1, ...]; `count` is the length of one rank's part. */
IVY_API int ivy_all_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                           const ivy_call* call);
/* Stores rank r's counts[r] elements at recv + displacements[r]; with NULL displacements, the
 * parts are stored back to back. The arrays must be the same on all ranks. */
IVY_API int ivy_all_gather_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                             const size_t* displacements, int dtype, const ivy_call* call);
/* `send` has one block of `count` elements per rank; recv = op over all ranks of this rank's
 * block. In place, `recv` holds all blocks, and the result is stored at its start. */
IVY_API int ivy_reduce_scatter(ivy_comm* comm, const void* send, void* recv, size_t count,
                               int dtype, int op, const ivy_call* call);
/* As ivy_reduce_scatter, with counts[r] elements for rank r, stored back to back in `send`.
 * `counts` must be the same on all ranks. */
IVY_API int ivy_reduce_scatter_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                                 int dtype, int op, const ivy_call* call);
/* As ivy_all_gather, but only `root` receives the result; `recv` is not used on other ranks. */
IVY_API int ivy_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int root, const ivy_call* call);
/* `counts` and `displacements` are used at the root only; `send_count` is this rank's. */
IVY_API int ivy_gather_v(ivy_comm* comm, const void* send, size_t send_count, void* recv,
                         const size_t* counts, const size_t* displacements, int dtype, int root,
                         const ivy_call* call);
/* Sends block r of the root's `send` to rank r's `recv`; a block has `count` elements. `send` is
 * not used on other ranks. */
IVY_API int ivy_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                        int root, const ivy_call* call);
/* `send`, `counts` and `displacements` are used at the root only; `recv_count` is this rank's. */
IVY_API int ivy_scatter_v(ivy_comm* comm, const void* send, const size_t* counts,
                          const size_t* displacements, void* recv, size_t recv_count, int dtype,
                          int root, const ivy_call* call);
/* Sends block r of `send` to rank r and receives block r of `recv` from rank r. */
IVY_API int ivy_all_to_all(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                           const ivy_call* call);
/* As ivy_all_to_all, with counts and displacements per rank. With NULL displacements, the parts are
 * stored back to back. */
IVY_API int ivy_all_to_all_v(ivy_comm* comm, const void* send, const size_t* send_counts,
                             const size_t* send_displacements, void* recv,
                             const size_t* recv_counts, const size_t* recv_displacements, int dtype,
                             const ivy_call* call);
/* recv[i] = op over all ranks up to and including this one. */
IVY_API int ivy_scan(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
                     const ivy_call* call);
/* recv[i] = op over all ranks before this one. Rank 0 gets the operation's identity: 0 for a
 * sum, an average, OR and XOR, 1 for a product, all bits set for AND, the greatest value
 * (infinity) for MIN, the least for MAX. */
IVY_API int ivy_exscan(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, const ivy_call* call);
/* Returns when every rank of the communicator has called it. */
IVY_API int ivy_barrier(ivy_comm* comm, const ivy_call* call);

/* ---- Registered buffers -----------------------------------------------------------------------
 */

/* Allocates memory that the other ranks of this host can read directly. all_reduce,
 * reduce_scatter, all_gather, all_to_all and broadcast avoid a second copy if every byte of
 * every rank's buffers in the call is such memory; otherwise they work as usual. Any rank may
 * call this at any time, without the others. The memory is zeroed and page-aligned. After
 * ivy_finalize it becomes ordinary memory, which must still be freed with ivy_mem_free. Returns
 * IVY_RESOURCE_EXHAUSTED if there is not enough memory. */
IVY_API int ivy_mem_alloc(ivy_comm* comm, size_t bytes, void** memory);
/* Frees memory from ivy_mem_alloc, which no operation may be using, or from
 * ivy_mem_alloc_device. NULL is ignored. */
IVY_API int ivy_mem_free(void* memory);

/* Allocates memory on a device (-1: the current one) that NCCL can use in place: from NCCL's own
 * allocator if it has one (2.19), otherwise from the driver. Operations of any communicator on
 * this memory are faster if NCCL can register it; a communicator registers it in its first
 * operation on it outside graph capture. Any rank may call this at any time, without the others.
 * The memory is not zeroed. ivy_mem_free waits for operations that use it, but not for graphs
 * that contain such operations: free the graphs first. Returns IVY_RESOURCE_EXHAUSTED if there is
 * not enough memory, and IVY_FAILED_PRECONDITION if there is no device. */
IVY_API int ivy_mem_alloc_device(ivy_comm* comm, int device, size_t bytes, void** memory);
/* Registers memory from ivy_mem_alloc_device as a symmetric window of the communicator: each
 * rank's NCCL maps it into all devices that it can reach, for NCCL's fastest algorithms (2.27;
 * no effect with an older NCCL or a device without support). Every rank calls this with the same
 * amount of its own memory; operations must then use the same offset in the window on all ranks.
 * Sets up NCCL as ivy_prepare_device does. */
IVY_API int ivy_mem_window(ivy_comm* comm, void* memory, const ivy_call* call);

/* Point-to-point messages. Tags are 0 to 2^30. Messages of one pair with one tag arrive in
 * order. The receiver gets an error if a message is longer than the buffer, or if no message can
 * arrive any longer: the source has left, or, for any source, all other ranks have. `message`
 * may be NULL; with call.work it is not written: use ivy_work_message. */
IVY_API int ivy_send(ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag,
                     const ivy_call* call);
IVY_API int ivy_recv(ivy_comm* comm, void* buffer, size_t count, int dtype, int from, int tag,
                     ivy_message* message, const ivy_call* call);
/* As ivy_recv, but gives up if no message has started to arrive after `at_most_ms` (0: poll,
 * negative: no limit): it then returns IVY_OK with message->source = -1, nothing is broken, and
 * the message can be received later. Once a message has started to arrive, the call waits for
 * all of it. `message` must not be NULL. */
IVY_API int ivy_recv_within(ivy_comm* comm, void* buffer, size_t count, int dtype, int from,
                            int tag, ivy_message* message, int64_t at_most_ms);
/* Sends and receives at the same time; never asynchronous. */
IVY_API int ivy_sendrecv(ivy_comm* comm, const void* send, size_t send_count, int to, int send_tag,
                         void* recv, size_t recv_count, int from, int recv_tag, int dtype,
                         ivy_message* message, const ivy_call* call);

/* Operations on device memory that this thread calls between the two functions are passed to
 * NCCL as one group, if they use IVY_ENQUEUE or ivy_call.work and their communicator has
 * completed one before or was set up with ivy_prepare_device. Other operations run immediately.
 * When ivy_group_end returns, the operations of the group are on their streams; it returns the
 * first failure among them. Two ranks that send to each other must do so in a group
 * (ivy_sendrecv is one). Groups nest: only the outermost ivy_group_end counts. Do not wait for
 * work inside a group. */
IVY_API int ivy_group_begin(void);
IVY_API int ivy_group_end(void);

/* ---- Work ------------------------------------------------------------------------------------ */

/* Waits for the operation and returns its code. If this wait's timeout expires,
 * IVY_DEADLINE_EXCEEDED is returned and the operation continues. */
IVY_API int ivy_work_wait(ivy_work* work, int64_t timeout_ms);
/* Makes `stream` (a cudaStream_t or hipStream_t) wait for an operation on device memory, without
 * blocking this thread: anything enqueued on the stream afterwards sees the result. Blocks as
 * ivy_work_wait does for operations on host memory, and as long as an operation is not on a
 * stream yet, such as a communicator's first on a device. A later failure is returned by the
 * next call or by ivy_work_wait. */
IVY_API int ivy_work_hold_back(ivy_work* work, void* stream);
IVY_API int ivy_work_test(ivy_work* work, int* done); /* Returns the operation's code once done. */
/* Writes `token` (8 bytes) to the descriptor when the operation is done, or immediately if it
 * already is. An eventfd needs the token 1; a pipe takes any. The descriptor must stay open
 * until then and should be non-blocking, because the thread that completes operations writes to
 * it; a token that does not fit into a full pipe is dropped. */
IVY_API int ivy_work_notify(ivy_work* work, int descriptor, uint64_t token);
IVY_API int ivy_work_abort(ivy_work* work);                         /* As ivy_comm_abort. */
IVY_API int ivy_work_message(ivy_work* work, ivy_message* message); /* For finished receives. */
/* *queued: seconds from the call to the operation's start; *ran: from its start to its end. Both
 * are 0 until the operation is done. */
IVY_API int ivy_work_timing(ivy_work* work, double* queued, double* ran);
/* Waits for the operation, then frees its handle. */
IVY_API int ivy_work_free(ivy_work* work);

/* ---- The job's store --------------------------------------------------------------------------
 */

/* Keys are text of at most 8 KiB, values are bytes of at most 8 MiB. All ranks of the job see
 * the same keys, until the job is restarted. Returned values are allocated; free their data with
 * ivy_bytes_free. Calls that wait return IVY_DEADLINE_EXCEEDED after their timeout, other calls
 * after 60 s without an answer (without ivyrun, 10 s). A failure here does not break a
 * communicator. In a world of one, which has no store, all return IVY_FAILED_PRECONDITION. */
/* Stores a value, whether or not the key exists. */
IVY_API int ivy_store_set(ivy_comm* comm, const char* key, const void* value, size_t value_bytes);
/* Waits until the key has a value and returns it. */
IVY_API int ivy_store_get(ivy_comm* comm, const char* key, int64_t timeout_ms, void** value,
                          size_t* value_bytes);
/* Adds to a decimal number; a missing key counts as 0. *value is the sum. */
IVY_API int ivy_store_add(ivy_comm* comm, const char* key, int64_t delta, int64_t* value);
/* Deletes a key. *existed is 1 if it existed, else 0; `existed` may be NULL. */
IVY_API int ivy_store_remove(ivy_comm* comm, const char* key, int* existed);
/* Stores swap->desired if the value equals swap->expected, and reports the value afterwards. */
IVY_API int ivy_store_compare_set(ivy_comm* comm, const char* key, ivy_swap* swap);
/* Appends to a value; a missing key counts as empty. *length is the new length in bytes. */
IVY_API int ivy_store_append(ivy_comm* comm, const char* key, ivy_bytes value, uint64_t* length);
/* Waits until all keys have values. */
IVY_API int ivy_store_wait(ivy_comm* comm, const char* const* keys, size_t key_count,
                           int64_t timeout_ms);
/* Sets *all_exist to 1 if all keys have values now, else to 0. */
IVY_API int ivy_store_check(ivy_comm* comm, const char* const* keys, size_t key_count,
                            int* all_exist);
/* Reads all keys atomically. If a key is missing, returns IVY_NOT_FOUND, and the text names it. */
IVY_API int ivy_store_multi_get(ivy_comm* comm, const char* const* keys, size_t key_count,
                                ivy_bytes* values);
/* Stores all values atomically. */
IVY_API int ivy_store_multi_set(ivy_comm* comm, const char* const* keys, size_t key_count,
                                const ivy_bytes* values);
/* Queues have their own names, separate from keys. Each value is popped once, by any rank, in
 * the order in which values were pushed. */
IVY_API int ivy_store_push(ivy_comm* comm, const char* queue, ivy_bytes value, uint64_t* length);
IVY_API int ivy_store_pop(ivy_comm* comm, const char* queue, int64_t timeout_ms, ivy_bytes* value);
IVY_API int ivy_store_queue_length(ivy_comm* comm, const char* queue, uint64_t* length);
/* Lists the keys that start with `prefix`, sorted, each followed by a NUL. The library's own
 * keys start with "ivy/". */
IVY_API int ivy_store_list(ivy_comm* comm, const char* prefix, ivy_bytes* names);
IVY_API int ivy_store_count(ivy_comm* comm, const char* prefix, uint64_t* keys);
/* Waits at a barrier in the store. The members need not share a communicator, and none is broken
 * by a failure. */
IVY_API int ivy_store_barrier(ivy_comm* comm, const char* name, ivy_store_meeting* meeting,
                              int64_t timeout_ms);
/* Returns a text for people: which clients wait for which keys in the store. */
IVY_API int ivy_store_why(ivy_comm* comm, ivy_bytes* text);
/* Records all changes, from now on, of keys that start with `prefix`; ivy_store_next_change takes
 * them in order. At most 64 Ki changes and 64 MiB are kept; beyond that all of them count as
 * missed. Only one thread at a time may take a watch's changes. */
IVY_API int ivy_store_watch(ivy_comm* comm, const char* prefix, uint32_t* watch);
IVY_API int ivy_store_next_change(ivy_comm* comm, uint32_t watch, int64_t timeout_ms,
                                  ivy_store_change* change);
/* Ends a watch. A call that waits for its changes returns IVY_CANCELLED. */
IVY_API int ivy_store_end_watch(ivy_comm* comm, uint32_t watch);
IVY_API void ivy_bytes_free(void* value);

#ifdef __cplusplus
}
#endif
