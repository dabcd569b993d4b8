// MPI for jaxlib's own collectives on the CPU, carried out by libivycomm. jaxlib has MPItrampoline
// in it, which loads the library that MPITRAMPOLINE_LIB names (this one, by the Python hook's
// default) and looks there for MPI's functions and constants under names of its own
// (mpi_names.def). Served is what XLA's mpi_communicator.cc calls, and little more; any other
// function ends the process with its name.
//
// A communicator's handle is libivycomm's ivy_comm, a request's its ivy_work. Errors are
// libivycomm's, whose text MPI_Error_string gives: it names the rank that has died.
//
// Threads: any. MPI_Is_thread_main is true in all of them: libivycomm takes them all, and XLA makes
// communicators only where it is. XLA means to refuse several devices in a process by that, which
// MPI_Comm_split does instead.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/contract/ivycomm.h"

#define IVY_MPI_EXPORT extern "C" __attribute__((visibility("default")))

// MPItrampoline compares them before it looks for anything else.
IVY_MPI_EXPORT const int mpiabi_version_major = 2;
IVY_MPI_EXPORT const int mpiabi_version_minor = 10;
IVY_MPI_EXPORT const int mpiabi_version_patch = 0;
IVY_MPI_EXPORT const int mpiwrapper_version_major = 2;
IVY_MPI_EXPORT const int mpiwrapper_version_minor = 11;
IVY_MPI_EXPORT const int mpiwrapper_version_patch = 0;

namespace {

using Handle = std::uintptr_t;

// Types and operations are ours above these, so that none of them is 0 and none is another's.
constexpr Handle kFirstType = 0x1000;
constexpr Handle kFirstOp = 0x2000;
constexpr Handle kOther = 0x3000;
constexpr std::size_t kErrorTextBytes = 1024;
constexpr ivy_call kPatiently = {sizeof(ivy_call), IVY_FOREVER, nullptr, 0,
                                 nullptr,          0,           nullptr, nullptr};

ivy_comm* world = nullptr;
bool is_finalized = false;

// As MPItrampoline's header has it.
struct Status {
  std::uint64_t of_other_libraries[3];
  int source;
  int tag;
  int error;
};

ivy_comm* comm_of(Handle handle);
int type_of(Handle type) { return static_cast<int>(type - kFirstType); }
int op_of(Handle op) { return static_cast<int>(op - kFirstOp); }
bool is_in_place(const void* buffer) { return buffer == reinterpret_cast<const void*>(kOther); }
const void* send_of(const void* buffer) { return is_in_place(buffer) ? IVY_IN_PLACE : buffer; }
std::size_t size_of(int count) { return static_cast<std::size_t>(count); }

[[noreturn]] void end_with(const char* name, const char* why) {
  std::fprintf(
      stderr,
      "libivycomm_jax: %s %s: it serves XLA's collectives on the CPU; for other programs set "
      "MPITRAMPOLINE_LIB to an MPIwrapper of the MPI that is installed (docs/frameworks.md)\n",
      name, why);
  std::abort();
}

// XLA looks at the results of collectives, and not at those of MPI_Init and MPI_Comm_split.
int must(int code, const char* what) {
  if (code == IVY_OK) return code;
  std::fprintf(stderr, "libivycomm_jax: %s: %s\n", what, ivy_last_error());
  std::exit(1);
}

[[noreturn]] void refuse_devices(int code) {
  std::fprintf(stderr,
               "libivycomm_jax: XLA's collectives by MPI want one device in each process: %s\n"
               "  fix:   leave --cpu-devices out, or take gloo "
               "(-x JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo)\n",
               code == IVY_OK ? "there are more" : ivy_last_error());
  std::_Exit(1);
}

int wait_for(Handle* request, Status* status) {
  auto* const work = reinterpret_cast<ivy_work*>(std::exchange(*request, 0));
  if (work == nullptr) return IVY_OK;
  int code = ivy_work_wait(work, IVY_FOREVER);
  ivy_message message = {sizeof message, 0, 0, 0};
  // Only a receive has one.
  if (code == IVY_OK && status != nullptr && ivy_work_message(work, &message) == IVY_OK)
    *status = {{message.bytes, 0, 0}, message.source, message.tag, IVY_OK};
  const int freed = ivy_work_free(work);
  return code == IVY_OK ? freed : code;
}

}  // namespace

// Constants. Those that are an int in MPI are read as the first half of these.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
// Each macro puts the name together itself: handed on, SEEK_SET would become the C library's
// number.
#define IVY_MPI_CONSTANT IVY_MPI_EXPORT const Handle
#define IVY_MPI_VALUE(name, value) IVY_MPI_CONSTANT MPIABI_##name = static_cast<Handle>(value);
#define IVY_MPI_TYPE(name, element) IVY_MPI_CONSTANT MPIABI_##name = kFirstType + (element);
#define IVY_MPI_OP(name, reduction) IVY_MPI_CONSTANT MPIABI_##name = kFirstOp + (reduction);
#define IVY_MPI_OTHER(name) IVY_MPI_CONSTANT MPIABI_##name = kOther;
#define IVY_MPI_UNSERVED(name) \
  IVY_MPI_EXPORT void MPIABI_##name() { end_with("MPI_" #name, "is not served"); }
#include "comm/python/jax_ffi/mpi_names.def"

namespace {

ivy_comm* comm_of(Handle handle) {
  if (world == nullptr) end_with("MPI", "was used before MPI_Init or after MPI_Finalize");
  return handle == MPIABI_COMM_WORLD ? world : reinterpret_cast<ivy_comm*>(handle);
}

}  // namespace

IVY_MPI_EXPORT void mpiwrapper_export_fortran_constants_() {}
IVY_MPI_EXPORT int MPIXABI_Query_cuda_support() { return 0; }
IVY_MPI_EXPORT int MPIXABI_Query_hip_support() { return 0; }
IVY_MPI_EXPORT int MPIXABI_Query_rocm_support() { return 0; }
IVY_MPI_EXPORT int MPIXABI_Query_ze_support() { return 0; }

IVY_MPI_EXPORT int MPIABI_Init_thread(int*, char***, int, int* provided) {
  *provided = static_cast<int>(MPIABI_THREAD_MULTIPLE);
  return must(ivy_init(nullptr, &world), "MPI_Init");
}
IVY_MPI_EXPORT int MPIABI_Init(int* argc, char*** argv) {
  int provided = 0;
  return MPIABI_Init_thread(argc, argv, 0, &provided);
}
IVY_MPI_EXPORT int MPIABI_Initialized(int* flag) {
  *flag = world != nullptr || is_finalized ? 1 : 0;
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Finalized(int* flag) {
  *flag = is_finalized ? 1 : 0;
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Finalize() {
  is_finalized = true;
  ivy_comm* const last = std::exchange(world, nullptr);
  return last == nullptr ? IVY_OK : ivy_finalize(last);
}
IVY_MPI_EXPORT int MPIABI_Abort(Handle, int code) {
  std::fprintf(stderr, "libivycomm_jax: MPI_Abort(%d)\n", code);
  std::_Exit((code & 0xff) == 0 ? 1 : code & 0xff);
}
IVY_MPI_EXPORT int MPIABI_Query_thread(int* provided) {
  *provided = static_cast<int>(MPIABI_THREAD_MULTIPLE);
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Get_library_version(char* text, int* length) {
  *length = std::snprintf(text, kErrorTextBytes, "libivycomm_jax of ivyrun %s", ivy_version());
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Error_string(int code, char* text, int* length) {
  const char* const said = ivy_last_error();
  *length = std::snprintf(text, kErrorTextBytes, "%s",
                          said == nullptr || *said == '\0' ? ivy_code_name(code) : said);
  if (*length >= static_cast<int>(kErrorTextBytes)) *length = kErrorTextBytes - 1;
  return IVY_OK;
}

IVY_MPI_EXPORT int MPIABI_Comm_rank(Handle comm, int* rank) {
  *rank = ivy_comm_rank(comm_of(comm));
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Comm_size(Handle comm, int* size) {
  *size = ivy_comm_size(comm_of(comm));
  return IVY_OK;
}
IVY_MPI_EXPORT int MPIABI_Comm_split(Handle comm, int color, int key, Handle* made) {
  ivy_comm* group = nullptr;
  const int code = ivy_comm_split(comm_of(comm), color, key, &group);
  // XLA's key is the rank that it will use. With several devices in a process each has one of its
  // own, and the communicator only one for all; or their threads meet in another order elsewhere.
  const bool has_one_device = group == nullptr || ivy_comm_rank(group) == key;
  if (code == IVY_ABORTED || !has_one_device) refuse_devices(code);
  must(code, "MPI_Comm_split");
  *made = reinterpret_cast<Handle>(group);
  return code;
}
IVY_MPI_EXPORT int MPIABI_Comm_dup(Handle comm, Handle* made) {
  return MPIABI_Comm_split(comm, 0, ivy_comm_rank(comm_of(comm)), made);
}
// XLA frees its communicators after MPI_Finalize, when they are gone.
IVY_MPI_EXPORT int MPIABI_Comm_free(Handle* comm) {
  const Handle freed = std::exchange(*comm, 0);
  return freed == 0 || world == nullptr ? IVY_OK : ivy_comm_free(comm_of(freed));
}

// The parameters that MPI's functions share.
#define IVY_MPI_GIVEN \
  const void *send, [[maybe_unused]] int send_count, [[maybe_unused]] Handle send_type
#define IVY_MPI_SENT IVY_MPI_GIVEN, int to, int send_tag
#define IVY_MPI_TAKEN void *recv, int count, [[maybe_unused]] Handle type
#define IVY_MPI_REDUCTION Handle type, Handle op, Handle comm
#define IVY_MPI_PEER int peer, int tag, Handle comm

IVY_MPI_EXPORT int MPIABI_Barrier(Handle comm) { return ivy_barrier(comm_of(comm), &kPatiently); }
IVY_MPI_EXPORT int MPIABI_Bcast(IVY_MPI_TAKEN, int root, Handle comm) {
  return ivy_broadcast(comm_of(comm), recv, size_of(count), type_of(type), root, &kPatiently);
}
IVY_MPI_EXPORT int MPIABI_Allreduce(const void* send, void* recv, int count, IVY_MPI_REDUCTION) {
  return ivy_all_reduce(comm_of(comm), send_of(send), recv, size_of(count), type_of(type),
                        op_of(op), &kPatiently);
}
IVY_MPI_EXPORT int MPIABI_Reduce_scatter(const void* send, void* recv, const int* counts,
                                         IVY_MPI_REDUCTION) {
  const std::vector<std::size_t> all(counts, counts + ivy_comm_size(comm_of(comm)));
  return ivy_reduce_scatter_v(comm_of(comm), send_of(send), recv, all.data(), type_of(type),
                              op_of(op), &kPatiently);
}
// The receiver's count and type are the sender's, as everywhere in XLA.
IVY_MPI_EXPORT int MPIABI_Allgather(IVY_MPI_GIVEN, IVY_MPI_TAKEN, Handle comm) {
  return ivy_all_gather(comm_of(comm), send_of(send), recv, size_of(count), type_of(type),
                        &kPatiently);
}
IVY_MPI_EXPORT int MPIABI_Alltoall(IVY_MPI_GIVEN, IVY_MPI_TAKEN, Handle comm) {
  return ivy_all_to_all(comm_of(comm), send_of(send), recv, size_of(count), type_of(type),
                        &kPatiently);
}

IVY_MPI_EXPORT int MPIABI_Isend(IVY_MPI_GIVEN, IVY_MPI_PEER, Handle* request) {
  ivy_work* work = nullptr;
  ivy_call call = kPatiently;
  call.work = &work;
  const int code =
      ivy_send(comm_of(comm), send, size_of(send_count), type_of(send_type), peer, tag, &call);
  *request = reinterpret_cast<Handle>(work);
  return code;
}
IVY_MPI_EXPORT int MPIABI_Irecv(IVY_MPI_TAKEN, IVY_MPI_PEER, Handle* request) {
  ivy_work* work = nullptr;
  ivy_call call = kPatiently;
  call.work = &work;
  const int code =
      ivy_recv(comm_of(comm), recv, size_of(count), type_of(type), peer, tag, nullptr, &call);
  *request = reinterpret_cast<Handle>(work);
  return code;
}
IVY_MPI_EXPORT int MPIABI_Wait(Handle* request, Status* status) {
  return wait_for(request, status);
}
IVY_MPI_EXPORT int MPIABI_Waitall(int count, Handle* requests, Status* statuses) {
  int first = IVY_OK;
  for (int i = 0; i < count; ++i) {
    const int code = wait_for(&requests[i], statuses == nullptr ? nullptr : &statuses[i]);
    if (first == IVY_OK) first = code;
  }
  return first;
}
IVY_MPI_EXPORT int MPIABI_Send(IVY_MPI_GIVEN, IVY_MPI_PEER) {
  return ivy_send(comm_of(comm), send, size_of(send_count), type_of(send_type), peer, tag,
                  &kPatiently);
}
IVY_MPI_EXPORT int MPIABI_Recv(IVY_MPI_TAKEN, IVY_MPI_PEER, Status* status) {
  ivy_message message = {sizeof message, 0, 0, 0};
  const int code = ivy_recv(comm_of(comm), recv, size_of(count), type_of(type), peer, tag, &message,
                            &kPatiently);
  if (status != nullptr) *status = {{message.bytes, 0, 0}, message.source, message.tag, code};
  return code;
}
IVY_MPI_EXPORT int MPIABI_Sendrecv(IVY_MPI_SENT, IVY_MPI_TAKEN, IVY_MPI_PEER, Status* status) {
  ivy_message message = {sizeof message, 0, 0, 0};
  const int code =
      ivy_sendrecv(comm_of(comm), send, size_of(send_count), to, send_tag, recv, size_of(count),
                   peer, tag, type_of(send_type), &message, &kPatiently);
  if (status != nullptr) *status = {{message.bytes, 0, 0}, message.source, message.tag, code};
  return code;
}
