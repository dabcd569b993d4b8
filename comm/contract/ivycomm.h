/* libivycomm: rank, world size and collectives inside a worker. The C interface; everything else
 * (ivycomm.hpp, the Python package) stands on it.
 *
 * Life: ivy_init gives the world communicator; ivy_finalize ends it and every group made from it. A
 * process may init again afterwards. Under `ivyrun`, torchrun, mpirun, mpiexec or srun nothing
 * needs to be said; without a launcher the world has one rank, or as many as ivy_options says.
 *
 * Results: every function returns an ivy_code (IVY_OK = 0). ivy_last_error() then tells the text
 * and ivy_last_failure() who is to blame, of the last failed call of this thread.
 *
 * Threads: any thread may call; calls on one communicator are carried out one at a time, in the
 * order in which they were made, and that order must be the same on all its ranks. Different
 * communicators are independent. Point-to-point calls are ordered only among themselves (pair and
 * tag).
 *
 * Buffers: dense memory, any alignment, all of a call on the host or all on one device; without
 * elements NULL will do. Device memory is found by its address and travels by NCCL; see
 * ivy_call.stream and docs/nccl.md. Where `send` and `recv` may not be the
 * same they must not overlap. In place: `send` = IVY_IN_PLACE means that the input stands where it
 * belongs in `recv`; of scatter, at the root, `recv` = IVY_IN_PLACE that its own part stays where
 * it is. A buffer of an asynchronous call belongs to the library until ivy_work_wait returned.
 *
 * After an error the communicator is broken: every later call on it returns the same error on every
 * rank, the contents of output buffers are undefined, and no other process writes into this one's
 * memory. What is left is ivy_finalize, or ivy_comm_shrink and ivy_comm_grow. InvalidArgument (seen
 * before anything was sent) breaks nothing.
 *
 * Fork: while there is a world, a child has no communicators: every call there returns
 * IVY_FAILED_PRECONDITION and changes nothing. Only what asks without doing anything
 * (ivy_comm_rank, ivy_last_error, ...) still answers, and ivy_bytes_free frees.
 */
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

/* The text of this thread's last failure: what, where, why, what to do. Valid until this thread's
 * next call. */
IVY_API const char* ivy_last_error(void);

IVY_API int ivy_last_failure(ivy_failure* failure);

IVY_API const char* ivy_code_name(int code); /* "Unavailable" */
IVY_API const char* ivy_version(void);       /* "0.1.0" */
IVY_API int ivy_abi_version(void);

/* ---- Life ------------------------------------------------------------------------------------ */

/* `options` may be NULL. Waits until every rank has come, at most the timeout; names who is
 * missing. */
IVY_API int ivy_init(const ivy_options* options, ivy_comm** world);
/* `world` and all groups made from it are gone afterwards, whatever is returned: calls on them
 * return IVY_FAILED_PRECONDITION, as on a group that was freed. Where the last
 * operation on the world was one that a rank can leave before the others come (broadcast, reduce,
 * gather, scatter, scan, exscan, all_to_all_v) it waits for them, within the world's timeout, and
 * returns the error where theirs was another operation or where a rank has died. Messages whose
 * sends are done reach their receivers also afterwards. Sends that are work and not done are seen
 * through first, while their receivers take of them: one of which nothing was taken for 10 s, or
 * whose timeout is over, is an error here. Otherwise it waits for nobody. */
IVY_API int ivy_finalize(ivy_comm* world);

/* Cheap questions; they cannot fail on a valid communicator. On one that is gone: -1, or "". */
IVY_API int ivy_comm_rank(const ivy_comm* comm);
IVY_API int ivy_comm_size(const ivy_comm* comm);
IVY_API int ivy_comm_local_rank(
    const ivy_comm* comm); /* Among this communicator's ranks of this host. */
IVY_API int ivy_comm_local_size(const ivy_comm* comm);
IVY_API int ivy_comm_node_rank(
    const ivy_comm* comm); /* Index of this host among those of the communicator. */
IVY_API int ivy_comm_node_count(const ivy_comm* comm);
IVY_API int ivy_comm_world_rank(const ivy_comm* comm, int rank); /* -1: no such rank. */
/* The source that assigned this rank: "ivyrun (IVY_RANK=1, IVY_WORLD_SIZE=4)", "a world of one".
 * Valid until ivy_finalize. */
IVY_API const char* ivy_comm_source(const ivy_comm* comm);
IVY_API const char* ivy_comm_name(const ivy_comm* comm); /* "world", "world/3" */

/* Groups. Every rank of `comm` calls both, in the same order among its other operations.
 * ivy_comm_group: `ranks` of `comm`, in the order of their new ranks; *group is NULL on the others.
 * ivy_comm_split: one group per colour, ordered by key, then by rank; colour < 0: none.
 * ivy_comm_free: this rank's seat in a group. Waits for no other rank, but for what it has enqueued
 * on a device, and sees sends through as ivy_finalize does. A collective that is work and not done
 * is not waited for: it breaks the group on every rank (IVY_CANCELLED); wait for the work before.
 * The seat is freed also where freeing fails;
 * IVY_ABORTED: the last operation was another one than a rank's that came before. */
IVY_API int ivy_comm_group(ivy_comm* comm, const int32_t* ranks, int32_t rank_count,
                           ivy_comm** group);
IVY_API int ivy_comm_split(ivy_comm* comm, int32_t color, int32_t key, ivy_comm** group);
/* A group that only its members make, through the job's store, also where `comm` is broken: ranks
 * of `comm`, this process's among them. IVY_FAILED_PRECONDITION: the members name different ranks;
 * IVY_DEADLINE_EXCEEDED: one does not come, and is named; IVY_UNAVAILABLE: one has died. */
IVY_API int ivy_comm_group_of_members(ivy_comm* comm, const ivy_members* members, ivy_comm** group);
IVY_API int ivy_comm_free(ivy_comm* group);

/* Repairs a world in this process, after a rank has died: the world of this handle becomes another
 * one, and every group made from it is gone. Every survivor calls the same of the two, whatever it
 * was in: the first that calls breaks what the others are in (IVY_CANCELLED).
 *   ivy_comm_shrink: the survivors, in their order; ranks are dense. Nobody has died: all of them.
 *   ivy_comm_grow: all ranks of the job, as at first. The lost ones are processes that the launcher
 *     has started again (IVY_REJOIN is set there): these call ivy_init, which waits for it.
 * `call` may be NULL; its timeout is the whole repair's, by default the world's. The result is the
 * same on every survivor. IVY_DEADLINE_EXCEEDED: names who has not come; IVY_ABORTED: the ranks
 * called different ones of the two; IVY_CANCELLED: ivy_comm_abort on the world during the repair;
 * IVY_FAILED_PRECONDITION: also, on one that the others took for dead, that they have gone on
 * without it. After an error there is no world until one of the two is called again; or
 * ivy_finalize. A rank that dies meanwhile is left out (shrink) or waited for (grow).
 * No other thread may be in a call on the world or its groups. Registered memory stays. */
IVY_API int ivy_comm_shrink(ivy_comm* world, const ivy_call* call);
IVY_API int ivy_comm_grow(ivy_comm* world, const ivy_call* call);
/* How many times this process's rank was started again before it: 0 in the first one. */
IVY_API int ivy_restart_count(void);

/* Breaks the communicator on every rank; wakes every waiting call within 10 ms. Without ivyrun
 * ranks of other hosts learn it from rank 0's store: within 50 ms while that answers, else from
 * connections that hang up. Any thread. */
IVY_API int ivy_comm_abort(ivy_comm* comm, const char* reason);

/* Makes NCCL's part of a communicator ahead of its first collective on device memory, which would
 * make it. Every rank calls it. `device`: as the process numbers them; -1: the current one. What
 * keeps NCCL from working on any rank is told on every rank, with what to do. */
IVY_API int ivy_prepare_device(ivy_comm* comm, int device, const ivy_call* call);
/* Where Python looks for packages, by ':': pip may have put NCCL there. Before a device is used. */
IVY_API int ivy_set_package_folders(const char* folders);

/* ---- Operations ------------------------------------------------------------------------------ */

/* Counts are elements. `send` holds what this rank gives, `recv` what it gets. */

/* recv[i] = op over all ranks of send[i]. */
IVY_API int ivy_all_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                           int op, const ivy_call* call);
/* Several all_reduces as one operation. All of one type and operation; the parts are as long on
 * every rank. */
IVY_API int ivy_all_reduce_coalesced(ivy_comm* comm, size_t parts, const void* const* send,
                                     void* const* recv, const size_t* counts, int dtype, int op,
                                     const ivy_call* call);
/* As all_reduce, but only `root` gets the result; recv may be NULL elsewhere. */
IVY_API int ivy_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, int root, const ivy_call* call);
IVY_API int ivy_broadcast(ivy_comm* comm, void* buffer, size_t count, int dtype, int root,
                          const ivy_call* call);
/* recv = [send of rank 0, send of rank 1, ...]; `count` is one rank's. */
IVY_API int ivy_all_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                           const ivy_call* call);
/* Rank r's counts[r] elements go to recv + displacements[r] (NULL: one after the other). The arrays
 * are the same on all ranks. */
IVY_API int ivy_all_gather_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                             const size_t* displacements, int dtype, const ivy_call* call);
/* send = size blocks of `count`; recv = op over all ranks of this rank's block. In place: recv
 * holds all blocks, and the result is put at its beginning. */
IVY_API int ivy_reduce_scatter(ivy_comm* comm, const void* send, void* recv, size_t count,
                               int dtype, int op, const ivy_call* call);
IVY_API int ivy_reduce_scatter_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                                 int dtype, int op, const ivy_call* call);
IVY_API int ivy_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int root, const ivy_call* call);
/* `counts` and `displacements` matter at the root; send_count is this rank's. */
IVY_API int ivy_gather_v(ivy_comm* comm, const void* send, size_t send_count, void* recv,
                         const size_t* counts, const size_t* displacements, int dtype, int root,
                         const ivy_call* call);
IVY_API int ivy_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                        int root, const ivy_call* call);
IVY_API int ivy_scatter_v(ivy_comm* comm, const void* send, const size_t* counts,
                          const size_t* displacements, void* recv, size_t recv_count, int dtype,
                          int root, const ivy_call* call);
/* Block r of send goes to rank r; block r of recv comes from rank r. */
IVY_API int ivy_all_to_all(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                           const ivy_call* call);
IVY_API int ivy_all_to_all_v(ivy_comm* comm, const void* send, const size_t* send_counts,
                             const size_t* send_displacements, void* recv,
                             const size_t* recv_counts, const size_t* recv_displacements, int dtype,
                             const ivy_call* call);
/* recv[i] = op over the ranks up to and with this one. */
IVY_API int ivy_scan(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
                     const ivy_call* call);
/* recv[i] = op over the ranks before this one. At rank 0, before which there is none, every recv[i]
 * is what changes nothing: 0 of a sum, an average, OR and XOR, 1 of a product, all bits of AND, the
 * greatest value (infinity) of MIN, the least of MAX. */
IVY_API int ivy_exscan(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, const ivy_call* call);
IVY_API int ivy_barrier(ivy_comm* comm, const ivy_call* call);

/* ---- Registered buffers -----------------------------------------------------------------------
 */

/* Memory that the other ranks of this host read where it is: all_reduce, reduce_scatter,
 * all_gather, all_to_all and broadcast copy nothing twice when every rank's buffers of the call lie
 * in such memory, on every byte; else they go the usual way. Any rank may call, for itself, at any
 * time. Zeroed, aligned to a page. IVY_RESOURCE_EXHAUSTED: there is not so much memory. After
 * ivy_finalize it is ordinary memory, which still wants ivy_mem_free. */
IVY_API int ivy_mem_alloc(ivy_comm* comm, size_t bytes, void** memory);
/* The pointer that ivy_mem_alloc gave (no operation may be using it) or ivy_mem_alloc_device; NULL
 * is nothing. */
IVY_API int ivy_mem_free(void* memory);

/* Memory of a device (-1: the current one) that NCCL uses where it lies: from its own allocator
 * where it has one (2.19), else from the driver. Operations of any communicator on it are faster
 * where NCCL can register it, which is done in a communicator's first operation on it, outside of
 * graphs. Any rank may call, for itself, at any time. Not zeroed. ivy_mem_free waits for the
 * operations that use it (but not for graphs that hold some: free these before).
 * IVY_RESOURCE_EXHAUSTED: there is not so much; IVY_FAILED_PRECONDITION: there is no device. */
IVY_API int ivy_mem_alloc_device(ivy_comm* comm, int device, size_t bytes, void** memory);
/* Makes memory of ivy_mem_alloc_device a symmetric window of the communicator: each rank's NCCL
 * maps it into all devices that it reaches, for NCCL's fastest ways (2.27; nothing happens where it
 * or the device has none). Every rank calls it, with as much memory of its own, and operations
 * then use the same place in it on all of them. Prepares the communicator as ivy_prepare_device. */
IVY_API int ivy_mem_window(ivy_comm* comm, void* memory, const ivy_call* call);

/* Point to point. Tags are 0 to 2^30. Messages of one pair with one tag arrive in order. A message
 * longer than the buffer is an error at the receiver, and so is one that can come no more: from a
 * rank that has left, from any when all others have. `message` may be NULL; with call.work nothing
 * is put there: ivy_work_message asks. */
IVY_API int ivy_send(ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag,
                     const ivy_call* call);
IVY_API int ivy_recv(ivy_comm* comm, void* buffer, size_t count, int dtype, int from, int tag,
                     ivy_message* message, const ivy_call* call);
/* ivy_recv that gives up when nothing has come in that time (0: it only looks, negative: without
 * limit): it returns IVY_OK with message->source -1, nothing is broken, and the message may come
 * later. A message that has begun to come is waited for. `message` is not NULL. */
IVY_API int ivy_recv_within(ivy_comm* comm, void* buffer, size_t count, int dtype, int from,
                            int tag, ivy_message* message, int64_t at_most_ms);
/* Both at once; never asynchronous. */
IVY_API int ivy_sendrecv(ivy_comm* comm, const void* send, size_t send_count, int to, int send_tag,
                         void* recv, size_t recv_count, int from, int recv_tag, int dtype,
                         ivy_message* message, const ivy_call* call);

/* Between the two, this thread's operations on device memory are given to NCCL together: those with
 * IVY_ENQUEUE or ivy_call.work, of communicators that have done one or were prepared
 * (ivy_prepare_device). They are on their streams when ivy_group_end returns, which tells the first
 * failure of them. A rank that sends to a rank which sends to it does so in a group (ivy_sendrecv
 * is one). Others are carried out at once. Groups nest: the outermost end counts. Do not wait for
 * work in between. */
IVY_API int ivy_group_begin(void);
IVY_API int ivy_group_end(void);

/* ---- Work ------------------------------------------------------------------------------------ */

/* Returns the operation's own code. IVY_DEADLINE_EXCEEDED of this wait leaves the operation
 * running. */
IVY_API int ivy_work_wait(ivy_work* work, int64_t timeout_ms);
/* What is put on `stream` (a cudaStream_t or hipStream_t) afterwards finds the operation done, and
 * this thread goes on: for work on device memory. It waits as ivy_work_wait does for work on host
 * memory, and while an operation is on no stream yet, as a communicator's first on a device. What
 * fails later is told by the next call, or by ivy_work_wait. */
IVY_API int ivy_work_hold_back(ivy_work* work, void* stream);
IVY_API int ivy_work_test(ivy_work* work, int* done); /* The code once done. */
/* Writes `token` (8 bytes) to the descriptor when the operation is done, at once if it is: an
 * eventfd wants 1, a pipe takes any. The descriptor stays open until then and should not block,
 * since the thread that completes operations writes; what a full pipe does not take is dropped. */
IVY_API int ivy_work_notify(ivy_work* work, int descriptor, uint64_t token);
IVY_API int ivy_work_abort(ivy_work* work);                         /* As ivy_comm_abort. */
IVY_API int ivy_work_message(ivy_work* work, ivy_message* message); /* A finished receive's. */
/* Seconds from the call to its start, and from its start to its end. */
IVY_API int ivy_work_timing(ivy_work* work, double* queued, double* ran);
/* Waits for the operation first. */
IVY_API int ivy_work_free(ivy_work* work);

/* ---- The job's store --------------------------------------------------------------------------
 */

/* Keys are text of at most 8 KiB, values bytes of at most 8 MiB; they are seen by all ranks of the
 * job, in this generation. A value that is given back is allocated; ivy_bytes_free frees its data.
 * Calls that wait return IVY_DEADLINE_EXCEEDED after their timeout, the others after 60 s without
 * an answer. A failure here breaks no communicator. A world of one has no store:
 * IVY_FAILED_PRECONDITION. */
IVY_API int ivy_store_set(ivy_comm* comm, const char* key, const void* value, size_t value_bytes);
/* The value, as soon as the key has one. */
IVY_API int ivy_store_get(ivy_comm* comm, const char* key, int64_t timeout_ms, void** value,
                          size_t* value_bytes);
/* Adds to a number in decimal digits; a key that is missing counts as 0. *value: the sum. */
IVY_API int ivy_store_add(ivy_comm* comm, const char* key, int64_t delta, int64_t* value);
IVY_API int ivy_store_remove(ivy_comm* comm, const char* key, int* existed);
/* Stores swap->desired where the value is swap->expected, and says what is there afterwards. */
IVY_API int ivy_store_compare_set(ivy_comm* comm, const char* key, ivy_swap* swap);
/* Adds to the end of a value; a key that is missing counts as empty. *length: bytes afterwards. */
IVY_API int ivy_store_append(ivy_comm* comm, const char* key, ivy_bytes value, uint64_t* length);
/* Waits until all keys have values. */
IVY_API int ivy_store_wait(ivy_comm* comm, const char* const* keys, size_t key_count,
                           int64_t timeout_ms);
IVY_API int ivy_store_check(ivy_comm* comm, const char* const* keys, size_t key_count,
                            int* all_exist);
/* All at once, as they are at one moment. IVY_NOT_FOUND names a key that is missing. */
IVY_API int ivy_store_multi_get(ivy_comm* comm, const char* const* keys, size_t key_count,
                                ivy_bytes* values);
IVY_API int ivy_store_multi_set(ivy_comm* comm, const char* const* keys, size_t key_count,
                                const ivy_bytes* values);
/* Queues have names of their own, apart from keys. What one rank pushes one rank pops, in order. */
IVY_API int ivy_store_push(ivy_comm* comm, const char* queue, ivy_bytes value, uint64_t* length);
IVY_API int ivy_store_pop(ivy_comm* comm, const char* queue, int64_t timeout_ms, ivy_bytes* value);
IVY_API int ivy_store_queue_length(ivy_comm* comm, const char* queue, uint64_t* length);
/* The keys that begin with `prefix`, sorted, each ended by a NUL. The library's own begin with
 * "ivy/". */
IVY_API int ivy_store_list(ivy_comm* comm, const char* prefix, ivy_bytes* names);
IVY_API int ivy_store_count(ivy_comm* comm, const char* prefix, uint64_t* keys);
/* Meets at a barrier of the store: no rank need be of one communicator, and none breaks. */
IVY_API int ivy_store_barrier(ivy_comm* comm, const char* name, ivy_store_meeting* meeting,
                              int64_t timeout_ms);
/* Text: who waits for what in the store. */
IVY_API int ivy_store_why(ivy_comm* comm, ivy_bytes* text);
/* From now on every change of a key that begins with `prefix` is kept until ivy_store_next_change
 * takes it, in their order: at most 64 Ki changes and 64 MiB, of which then all are missed. One
 * thread at a time takes a watch's changes. */
IVY_API int ivy_store_watch(ivy_comm* comm, const char* prefix, uint32_t* watch);
IVY_API int ivy_store_next_change(ivy_comm* comm, uint32_t watch, int64_t timeout_ms,
                                  ivy_store_change* change);
/* A call that waits for a change ends with IVY_CANCELLED. */
IVY_API int ivy_store_end_watch(ivy_comm* comm, uint32_t watch);
IVY_API void ivy_bytes_free(void* value);

#ifdef __cplusplus
}
#endif
