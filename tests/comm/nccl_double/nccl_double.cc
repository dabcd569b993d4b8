// SPDX-License-Identifier: Apache-2.0
// A test double of libnccl.so.2: its calls, its non-blocking behaviour, its failures, and real
// bytes between processes (board.h). Memory and streams are those of the test double of CUDA. It
// computes slowly on the CPU, and its timings have no meaning.
//
// NCCL_DOUBLE in the environment, separated by commas, selects its behaviour:
//   version=N        the version that ncclGetVersion returns (23007)
//   hang_init        init never ends, and warns in NCCL_DEBUG_FILE (supports %p)
//   fail_init        init ends with "unhandled system error"
//   old_driver       init ends with "unhandled cuda error", as with a driver that is too old
//   fail_id          ncclGetUniqueId fails
//   hang_call=NAME   this function never returns; for functions counted by nccl_double_count
//   hang_split       a split never ends
//   hang_abort       ncclCommAbort never returns
//   hang_finalize    finalize never ends
//   hang_revoke      ncclCommRevoke never returns
//   fail_revoke      ncclCommRevoke fails
//   keep_error       ncclCommRevoke succeeds, but the communicator still reports "remote error",
//                    as after a proxy has seen the end of a dead peer's connection
//   no_memory        ncclMemAlloc fails
//   no_register      ncclCommRegister fails
//   error_after=N    after N groups of calls a communicator reports "remote error"; the next hang
// A thread writes a new communicator to the caller's pointer even when its creation ends, also if
// it was aborted, like NCCL; so an address on the caller's stack is rejected. Calls wait until
// their operations are on the stream, unless Config::blocking or NCCL_COMM_BLOCKING is 0.
// NCCL_RAS_ADDR: the address that reports the state of the first communicator (ras_double.h).
// NCCL_DOUBLE_DIR: the directory of the files through which ranks communicate (/dev/shm).
// Counts as "leaked": communicators destroyed with registered buffers, and memory freed while
// registered.
// NCCL_DOUBLE_LACKS at compile time removes functions: 1, those added after 2.14; 2, also
// ncclCommAbort.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/nccl_double/board.h"
#include "tests/comm/nccl_double/combine.h"
#include "tests/comm/nccl_double/ras_double.h"

#define DOUBLE_API extern "C" __attribute__((visibility("default")))

extern "C" int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data);
extern "C" int cuStreamIsCapturing(void* stream, int* status);
extern "C" int cuMemAlloc_v2(std::uintptr_t* pointer, std::size_t bytes);
extern "C" int cuMemFree_v2(std::uintptr_t pointer);
extern "C" int cuda_double_touch(const void* pointer);
extern "C" int cuda_double_owns(const void* pointer, std::size_t bytes);

namespace {

using namespace nccl_double;

using Status = int;
constexpr Status kCudaError = 1;
constexpr Status kSystemError = 2;
constexpr Status kInvalidArgument = 4;
constexpr Status kInvalidUsage = 5;
constexpr Status kRemoteError = 6;
constexpr Status kInProgress = 7;
constexpr int kFirstMadeOp = 5;

struct UniqueId {
  char bytes[128];
};

struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int some_numbers[3];
  const char* net_name;
  int more_numbers[2];
  const char* name;
};

const char* reported(const char* word) {
  const char* const script = std::getenv("NCCL_DOUBLE");
  const char* const found = script != nullptr ? std::strstr(script, word) : nullptr;
  return found != nullptr ? found + std::strlen(word) : nullptr;
}

std::mutex counts_mutex;
std::map<std::string, int>& counts() {
  static auto* const all = new std::map<std::string, int>();
  return *all;
}
void count(const std::string& call) {
  while (reported(("hang_call=" + call).c_str()) != nullptr) pause();
  const std::lock_guard lock(counts_mutex);
  ++counts()[call];
}

bool is_on_own_stack(const void* pointer) {
  pthread_attr_t attributes;
  void* begin = nullptr;
  std::size_t bytes = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  const auto* const place = static_cast<const char*>(pointer);
  return place >= begin && place < static_cast<const char*>(begin) + bytes;
}

struct MadeOp {
  int type;
  double factor;
};

// One call in a group.
struct Call {
  enum class Kind : std::uint8_t { kReduce, kBroadcast, kGather, kReduceScatter, kTransfer };
  Kind kind = Kind::kTransfer;
  const char* send = nullptr;
  char* receive = nullptr;
  std::size_t bytes = 0;  // Of the whole operation, the same on every rank.
  int type = 0;
  int op = 0;
  double factor = 1;
  int root = -1;  // -1 means all.
  Transfer transfer;
};

}  // namespace

// The opaque communicator. Its own thread does NCCL's work in the background.
struct ncclComm {
  int rank = 0;
  int size = 1;
  std::vector<std::string> ids;
  std::unique_ptr<Board> board;
  std::atomic<Status> state{kInProgress};
  std::map<int, MadeOp> ops;
  int next_op = kFirstMadeOp;
  int groups = 0;
  std::atomic<int> launched{0};
  std::atomic<int> ended{0};
  std::atomic<bool> is_hung{false};
  bool is_blocking = false;
  bool is_revoked = false;
  std::map<void*, void*> buffers;  // Registered buffers by handle.
  std::atomic<int> callers{0};     // Waiting calls.

  std::mutex mutex;
  std::condition_variable has_work;
  std::deque<std::function<void()>> tasks;
  bool is_ending = false;
  std::thread thread;

  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    state = kInProgress;
    tasks.push_back(std::move(task));
    has_work.notify_all();
    if (!thread.joinable()) thread = std::thread([this] { run(); });
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      has_work.wait(lock, [this] { return is_ending || !tasks.empty(); });
      if (tasks.empty()) return;
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
  // Returns the result of a call that has pushed work.
  Status settle() {
    if (!is_blocking) return kInProgress;
    ++callers;
    while (state == kInProgress) usleep(20);
    const Status result = state;
    --callers;
    // Errors of operations are reported by ncclCommGetAsyncError.
    return result == kRemoteError ? 0 : result;
  }
  void hang() const {
    while (!board->is_aborted()) usleep(1000);
  }
};

namespace {

struct Launch {
  ncclComm* comm;
  std::vector<Call> calls;
  bool is_in_graph;  // May be executed several times.
};

bool carry_out(ncclComm& comm, const Call& call) {
  const int size = comm.size;
  const std::size_t share = call.bytes / static_cast<std::size_t>(size);
  const bool is_average = call.op == 4;
  const int op = is_average || call.op >= kFirstMadeOp ? 0 : call.op;
  std::vector<char> own;
  const char* shown = call.send;
  if (call.factor != 1 && shown != nullptr) {
    own.assign(shown, shown + call.bytes);
    scale(call.type, call.factor, own.data(), own.size());
    shown = own.data();
  }
  // Keeps results separate until all ranks have read, because `send` may equal `receive`.
  std::vector<char> result(
      call.kind == Call::Kind::kGather ? call.bytes * static_cast<std::size_t>(size) : call.bytes);
  if (call.kind == Call::Kind::kBroadcast && call.root != comm.rank) shown = nullptr;
  const bool is_ok = comm.board->show(
      shown, call.bytes, [&](int rank, std::size_t offset, const char* data, std::size_t bytes) {
        if (call.kind == Call::Kind::kGather) {
          std::memcpy(result.data() + static_cast<std::size_t>(rank) * call.bytes + offset, data,
                      bytes);
        } else if (call.kind == Call::Kind::kBroadcast) {
          if (rank == call.root) std::memcpy(result.data() + offset, data, bytes);
        } else if (rank == 0) {
          std::memcpy(result.data() + offset, data, bytes);
        } else {
          combine(call.type, op, result.data() + offset, data, bytes);
        }
      });
  if (!is_ok) return false;
  if (is_average) scale(call.type, 1.0 / size, result.data(), result.size());
  if (call.root >= 0 && call.kind == Call::Kind::kReduce && call.root != comm.rank) return true;
  // Like NCCL 2.28.9 on a GPU: the kernel for one rank, which only a factor needs, does not process
  // the remainder after the last 16 bytes of a large buffer.
  const bool has_factor = is_average || call.op >= kFirstMadeOp;
  if (size == 1 && has_factor && result.size() > 65'536) result.resize(result.size() / 16 * 16);
  if (call.kind == Call::Kind::kReduceScatter) {
    std::memcpy(call.receive, result.data() + share * static_cast<std::size_t>(comm.rank),
                std::min(share, result.size()));
  } else {
    std::memcpy(call.receive, result.data(), result.size());
  }
  return true;
}

void carry_out_all(void* data) {
  auto* const launch = static_cast<Launch*>(data);
  const std::unique_ptr<Launch> once(launch->is_in_graph ? nullptr : launch);
  ncclComm& comm = *launch->comm;
  if (comm.is_hung) comm.hang();
  std::vector<Transfer> transfers;
  bool is_ok = !comm.board->is_aborted();
  for (const Call& call : launch->calls) {
    for (const void* const used :
         {static_cast<const void*>(call.send), static_cast<const void*>(call.receive)}) {
      is_ok = is_ok && (used == nullptr || cuda_double_touch(used) != 0);
    }
  }
  for (const Call& call : launch->calls) {
    if (call.kind == Call::Kind::kTransfer)
      transfers.push_back(call.transfer);
    else if (is_ok)
      is_ok = carry_out(comm, call);
  }
  if (is_ok && !transfers.empty()) comm.board->transfer(transfers);
  if (once != nullptr) ++comm.ended;
}

struct Group {
  int depth = 0;
  Status status = 0;
  std::map<ncclComm*, std::vector<Call>> calls;
  void* stream = nullptr;
};
thread_local Group group;

Status launch_group() {
  Status status = group.status;
  group.status = 0;
  auto all = std::move(group.calls);
  group.calls.clear();
  void* const stream = group.stream;
  if (status != 0) return status;
  for (auto& [comm, calls] : all) {
    status = kInProgress;
    const char* const error_after = reported("error_after=");
    ncclComm* const to = comm;
    const bool is_hung = error_after != nullptr && ++to->groups > std::atoi(error_after);
    int is_capturing = 0;
    cuStreamIsCapturing(stream, &is_capturing);
    if (is_capturing == 0) ++to->launched;
    const int delay = to->is_blocking ? 0 : 100;
    to->push(
        [to, delay, is_hung, stream, launch = new Launch{to, std::move(calls), is_capturing != 0}] {
          usleep(static_cast<useconds_t>(delay));  // The call is in progress for a moment.
          if (is_hung) to->is_hung = true;
          cuLaunchHostFunc(stream, carry_out_all, launch);
          to->state = is_hung ? kRemoteError : 0;
        });
    status = to->settle();
  }
  return status;
}

Status add(ncclComm* comm, void* stream, Call call) {
  // The caller has not waited for the previous call to finish.
  if (comm->state == kInProgress || comm->is_revoked) return group.status = kInvalidUsage;
  if (const auto made = comm->ops.find(call.op); made != comm->ops.end()) {
    call.factor = made->second.factor;
  }
  const bool is_single = group.depth == 0;
  group.stream = stream;
  group.calls[comm].push_back(call);
  return is_single ? launch_group() : kInProgress;
}

bool are_device(const void* send, std::size_t send_bytes, const void* receive,
                std::size_t receive_bytes) {
  const bool is_ok = (send_bytes == 0 || cuda_double_owns(send, send_bytes) != 0) &&
                     (receive_bytes == 0 || cuda_double_owns(receive, receive_bytes) != 0);
  if (!is_ok) group.status = kInvalidArgument;
  return is_ok;
}

std::mutex files_mutex;
std::set<std::string>& own_files() {
  static auto* const files = new std::set<std::string>();
  return *files;
}
void forget_files() {
  const std::lock_guard lock(files_mutex);
  for (const std::string& file : own_files()) unlink(file.c_str());
}

void warn(const char* text) {
  const char* const pattern = std::getenv("NCCL_DEBUG_FILE");
  if (pattern == nullptr) return;
  std::string path = pattern;
  if (const std::size_t at = path.find("%p"); at != std::string::npos)
    path.replace(at, 2, std::to_string(getpid()));
  std::ofstream(path) << "\n[2026-11-22 06:00:00] double:" << getpid() << " [0] NCCL WARN " << text
                      << "\n";
}

// Returns true if all ranks hold the same ids in the same order.
bool are_ids_equal(ncclComm& comm) {
  const std::vector<std::string>& own = comm.ids;
  std::size_t hash = 0;
  for (const std::string& id : own) hash = hash * 31 + std::hash<std::string>()(id);
  bool is_equal = true;
  comm.board->show(reinterpret_cast<const char*>(&hash), sizeof hash,
                   [&](int, std::size_t, const char* data, std::size_t) {
                     is_equal = is_equal && std::memcmp(data, &hash, sizeof hash) == 0;
                   });
  return is_equal;
}

Status carry_out_init(ncclComm* comm) {
  if (reported("hang_init") != nullptr) {
    warn("the stand-in hangs");
    comm->hang();
    return kSystemError;  // The abort has ended it.
  }
  if (reported("old_driver") != nullptr) return kCudaError;
  if (reported("fail_init") != nullptr || !comm->board->attach()) return kSystemError;
  return are_ids_equal(*comm) ? 0 : kInvalidArgument;
}

// Describes a communicator with a rank that lags behind the others, like the health service.
void tell_of(int rank, bool is_made) {
  serve_ras([rank, is_made] {
    count("ras");
    const std::string name = "Rank " + std::to_string(rank);
    return "Communicators... (0.00s)\n=============\n\n    0  1  1  2  2  2  INIT  MISMATCH\n\n"
           "Errors\n======\n\nWarnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
           "  Communicator ranks have different status\n  " +
           name + " has status " + (is_made ? "RUNNING" : "INIT") + " -- GPU " +
           std::to_string(rank) + " managed by process " + std::to_string(getpid()) +
           " on node 127.0.0.1\n\n";
  });
}

Status make(ncclComm** out, int size, const std::vector<std::string>& ids, int rank,
            const Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->size < 24)
    return kInvalidArgument;
  if (size < 1 || rank < 0 || rank >= size) return kInvalidArgument;
  if (is_on_own_stack(out)) return kInvalidArgument;
  if (config->size >= sizeof(Config) && config->name != nullptr)
    count("name " + std::string(config->name));
  tell_of(rank, reported("hang_init") == nullptr);
  auto* const comm = new ncclComm();
  const char* const forced = std::getenv("NCCL_COMM_BLOCKING");
  comm->is_blocking = forced != nullptr ? std::atoi(forced) != 0 : config->blocking != 0;
  comm->rank = rank;
  comm->size = size;
  comm->ids = ids;
  comm->board = std::make_unique<Board>(ids[0], rank, size);
  std::atomic_ref<ncclComm*>(*out).store(comm);
  comm->push([comm, out] {
    const Status status = carry_out_init(comm);
    std::atomic_ref<ncclComm*>(*out).store(comm);
    comm->state = status;
  });
  return comm->settle();
}

std::mutex registered_mutex;
std::map<void*, int>& registered() {  // The number of communicators that registered each memory.
  static auto* const all = new std::map<void*, int>();
  return *all;
}

void forget_buffers(ncclComm* comm) {
  const std::lock_guard lock(registered_mutex);
  for (const auto& [handle, memory] : comm->buffers) {
    --registered()[memory];
    delete static_cast<char*>(handle);
  }
  comm->buffers.clear();
}

void end_thread(ncclComm* comm) {
  {
    const std::lock_guard lock(comm->mutex);
    comm->is_ending = true;
    comm->has_work.notify_all();
  }
  if (comm->thread.joinable()) comm->thread.join();
}

}  // namespace

// ---- Communicators ------------------------------------------------------------------------------

DOUBLE_API int nccl_double_count(const char* call) {
  const std::lock_guard lock(counts_mutex);
  return counts()[call];
}

DOUBLE_API Status ncclGetVersion(int* version) {
  const char* const script = reported("version=");
  *version = script != nullptr ? std::atoi(script) : 23007;
  return 0;
}

DOUBLE_API Status ncclGetUniqueId(UniqueId* id) {
  count("ncclGetUniqueId");
  if (reported("fail_id") != nullptr) return kSystemError;
  const std::string path = Board::make_file();
  std::memset(id, 0, sizeof *id);
  std::strncpy(id->bytes, path.c_str(), sizeof id->bytes - 1);
  const std::lock_guard lock(files_mutex);
  if (own_files().empty()) std::atexit(forget_files);
  own_files().insert(path);
  return path.empty() ? kSystemError : 0;
}

DOUBLE_API Status ncclCommInitRankConfig(ncclComm** comm, int size, UniqueId id, int rank,
                                         Config* config) {
  count("ncclCommInitRankConfig");
  return make(comm, size, {id.bytes}, rank, config);
}

DOUBLE_API Status ncclCommGetAsyncError(ncclComm* comm, Status* status) {
  *status = comm->state;
  return 0;
}

DOUBLE_API const char* ncclGetErrorString(Status status) {
  switch (status) {
    case 0:
      return "no error";
    case kCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

DOUBLE_API const char* ncclGetLastError(ncclComm*) { return "so says the stand-in"; }

DOUBLE_API Status ncclCommFinalize(ncclComm* comm) {
  count("ncclCommFinalize");
  comm->push([comm] {
    if (reported("hang_finalize") != nullptr) return comm->hang();
    while (comm->ended < comm->launched && !comm->board->is_aborted()) usleep(100);
    comm->state = 0;
  });
  return comm->settle();
}

DOUBLE_API Status ncclCommDestroy(ncclComm* comm) {
  count("ncclCommDestroy");
  if (!comm->buffers.empty()) count("leaked");
  end_thread(comm);
  delete comm;
  return 0;
}

#if NCCL_DOUBLE_LACKS < 2
DOUBLE_API Status ncclCommAbort(ncclComm* comm) {
  count("ncclCommAbort");
  forget_files();
  while (reported("hang_abort") != nullptr) pause();
  comm->board->abort();
  end_thread(comm);
  while (comm->callers > 0) usleep(20);
  while (comm->ended < comm->launched) usleep(100);
  forget_buffers(comm);
  delete comm;
  return 0;
}
#endif

#if NCCL_DOUBLE_LACKS < 1
DOUBLE_API Status ncclCommInitRankScalable(ncclComm** comm, int size, int rank, int ids,
                                           UniqueId* all, Config* config) {
  count("ncclCommInitRankScalable");
  if (ids < 1) return kInvalidArgument;
  std::vector<std::string> files;
  for (int id = 0; id < ids; ++id) {
    files.emplace_back(all[id].bytes);
    // Ranks are divided into runs, the first of which are one longer. The first rank of a run is a
    // root.
    const int root = size / ids * id + std::min(id, size % ids);
    const std::lock_guard lock(files_mutex);
    if (own_files().contains(files.back()) != (root == rank)) return kInvalidArgument;
  }
  if (std::set<std::string>(files.begin(), files.end()).size() != files.size())
    return kInvalidArgument;
  // Here one root serves all ranks.
  for (int other = 1; other < ids; ++other) unlink(all[other].bytes);
  return make(comm, size, files, rank, config);
}

DOUBLE_API Status ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** child,
                                Config* config) {
  count("ncclCommSplit");
  if (comm->state != 0) return kInvalidUsage;
  if (is_on_own_stack(child)) return kInvalidArgument;
  Config how = {};
  std::memcpy(&how, config, std::min(sizeof how, config->size));
  comm->push([comm, color, key, child, how] {
    if (reported("hang_split") != nullptr) {
      comm->hang();
      std::atomic_ref<ncclComm*>(*child).store(nullptr);
      comm->state = kSystemError;  // The abort has ended it.
      return;
    }
    struct Choice {
      int color;
      int key;
      char file[64];
    };
    Choice own = {color, key, {}};
    const std::string file = Board::make_file();
    std::strncpy(own.file, file.c_str(), sizeof own.file - 1);
    std::vector<Choice> all(static_cast<std::size_t>(comm->size));
    // NCCL exchanges this separately from operations. Here both use one board, so wait for
    // operations.
    while (comm->ended < comm->launched && !comm->board->is_aborted()) usleep(100);
    comm->board->show(reinterpret_cast<const char*>(&own), sizeof own,
                      [&](int rank, std::size_t, const char* data, std::size_t) {
                        std::memcpy(&all[static_cast<std::size_t>(rank)], data, sizeof own);
                      });
    int size = 0;
    int place = 0;
    int leader = -1;
    for (int rank = 0; rank < comm->size; ++rank) {
      const Choice& one = all[static_cast<std::size_t>(rank)];
      if (one.color != color) continue;
      if (leader < 0) leader = rank;
      ++size;
      if (one.key < key || (one.key == key && rank < comm->rank)) ++place;
    }
    if (color < 0 || leader != comm->rank) unlink(file.c_str());
    if (color >= 0) make(child, size, {all[static_cast<std::size_t>(leader)].file}, place, &how);
    comm->state = 0;
  });
  return comm->settle();
}
#endif

#if NCCL_DOUBLE_LACKS < 1
// Ends all operations in progress like an abort, but keeps the communicator.
DOUBLE_API Status ncclCommRevoke(ncclComm* comm, int) {
  count("ncclCommRevoke");
  while (reported("hang_revoke") != nullptr) pause();
  if (reported("fail_revoke") != nullptr) return kSystemError;
  comm->board->abort();
  while (comm->ended < comm->launched) usleep(100);
  comm->is_revoked = true;
  comm->state = reported("keep_error") != nullptr ? kRemoteError : 0;
  return 0;
}

// The remaining ranks use a file whose name each derives from the parent's and the excluded ranks.
DOUBLE_API Status ncclCommShrink(ncclComm* comm, int* excluded, int count_of_excluded,
                                 ncclComm** child, Config* config, int flags) {
  count("ncclCommShrink");
  if (count_of_excluded < 1 || (!comm->is_revoked && flags != 1)) return kInvalidUsage;
  if (comm->state != 0) return comm->state;
  std::string file = comm->ids[0];
  int place = comm->rank;
  for (int i = 0; i < count_of_excluded; ++i) {
    if (excluded[i] == comm->rank) return kInvalidArgument;
    if (excluded[i] < comm->rank) --place;
    file += "-" + std::to_string(excluded[i]);
  }
  Board::make_file(file);
  {
    const std::lock_guard lock(files_mutex);
    own_files().insert(file);
  }
  return make(child, comm->size - count_of_excluded, {file}, place, config);
}

// ---- Memory -------------------------------------------------------------------------------------

DOUBLE_API Status ncclMemAlloc(void** memory, std::size_t bytes) {
  count("ncclMemAlloc");
  if (reported("no_memory") != nullptr) return kSystemError;
  std::uintptr_t place = 0;
  if (cuMemAlloc_v2(&place, bytes) != 0) return kSystemError;
  *memory = reinterpret_cast<void*>(place);
  return 0;
}

DOUBLE_API Status ncclMemFree(void* memory) {
  count("ncclMemFree");
  const std::lock_guard lock(registered_mutex);
  if (registered()[memory] != 0) count("leaked");
  return cuMemFree_v2(reinterpret_cast<std::uintptr_t>(memory)) == 0 ? 0 : kInvalidArgument;
}

DOUBLE_API Status ncclCommRegister(ncclComm* comm, void* memory, std::size_t bytes, void** handle) {
  count("ncclCommRegister");
  if (reported("no_register") != nullptr) return kSystemError;
  if (comm->state != 0 || cuda_double_owns(memory, bytes) == 0) return kInvalidArgument;
  const std::lock_guard lock(registered_mutex);
  ++registered()[memory];
  *handle = new char;
  comm->buffers[*handle] = memory;
  return 0;
}

DOUBLE_API Status ncclCommDeregister(ncclComm* comm, void* handle) {
  count("ncclCommDeregister");
  const std::lock_guard lock(registered_mutex);
  const auto found = comm->buffers.find(handle);
  if (found == comm->buffers.end()) return kInvalidArgument;
  --registered()[found->second];
  comm->buffers.erase(found);
  delete static_cast<char*>(handle);
  return 0;
}

// All ranks register the same size at the same time.
DOUBLE_API Status ncclCommWindowRegister(ncclComm* comm, void* memory, std::size_t bytes,
                                         void** window, int) {
  count("ncclCommWindowRegister");
  bool is_equal = true;
  comm->push([comm, bytes, &is_equal] {
    comm->board->show(reinterpret_cast<const char*>(&bytes), sizeof bytes,
                      [&](int, std::size_t, const char* data, std::size_t) {
                        is_equal = is_equal && std::memcmp(data, &bytes, sizeof bytes) == 0;
                      });
    comm->state = 0;
  });
  while (comm->state == kInProgress) usleep(20);
  if (!is_equal) return kInvalidArgument;
  return ncclCommRegister(comm, memory, bytes, window);
}

DOUBLE_API Status ncclCommWindowDeregister(ncclComm* comm, void* window) {
  count("ncclCommWindowDeregister");
  return ncclCommDeregister(comm, window);
}
#endif

// ---- Operations ---------------------------------------------------------------------------------

DOUBLE_API Status ncclGroupStart() {
  ++group.depth;
  return 0;
}

DOUBLE_API Status ncclGroupEnd() {
  if (--group.depth > 0) return 0;
  return launch_group();
}

DOUBLE_API Status ncclRedOpCreatePreMulSum(int* op, void* factor, int type, int, ncclComm* comm) {
  count("ncclRedOpCreatePreMulSum");
  double value = 0;
  if (type == 7) value = *static_cast<const float*>(factor);
  if (type == 8) value = *static_cast<const double*>(factor);
  *op = comm->next_op++;
  comm->ops[*op] = {type, value};
  return 0;
}

DOUBLE_API Status ncclRedOpDestroy(int op, ncclComm* comm) {
  return comm->ops.erase(op) == 1 ? 0 : kInvalidArgument;
}

DOUBLE_API Status ncclAllReduce(const void* send, void* receive, std::size_t elements, int type,
                                int op, ncclComm* comm, void* stream) {
  count("ncclAllReduce");
  const std::size_t bytes = elements * element_bytes(type);
  if (!are_device(send, bytes, receive, bytes)) return kInvalidArgument;
  Call call;
  call.kind = Call::Kind::kReduce;
  call.send = static_cast<const char*>(send);
  call.receive = static_cast<char*>(receive);
  call.bytes = bytes;
  call.type = type;
  call.op = op;
  return add(comm, stream, call);
}

DOUBLE_API Status ncclReduce(const void* send, void* receive, std::size_t elements, int type,
                             int op, int root, ncclComm* comm, void* stream) {
  count("ncclReduce");
  const std::size_t bytes = elements * element_bytes(type);
  if (!are_device(send, bytes, receive, comm->rank == root ? bytes : 0)) return kInvalidArgument;
  Call call;
  call.kind = Call::Kind::kReduce;
  call.send = static_cast<const char*>(send);
  call.receive = static_cast<char*>(receive);
  call.bytes = bytes;
  call.type = type;
  call.op = op;
  call.root = root;
  return add(comm, stream, call);
}

DOUBLE_API Status ncclBroadcast(const void* send, void* receive, std::size_t elements, int type,
                                int root, ncclComm* comm, void* stream) {
  count("ncclBroadcast");
  const std::size_t bytes = elements * element_bytes(type);
  if (!are_device(send, comm->rank == root ? bytes : 0, receive, bytes)) return kInvalidArgument;
  Call call;
  call.kind = Call::Kind::kBroadcast;
  call.send = static_cast<const char*>(send);
  call.receive = static_cast<char*>(receive);
  call.bytes = bytes;
  call.root = root;
  return add(comm, stream, call);
}

DOUBLE_API Status ncclAllGather(const void* send, void* receive, std::size_t elements, int type,
                                ncclComm* comm, void* stream) {
  count("ncclAllGather");
  const std::size_t bytes = elements * element_bytes(type);
  if (!are_device(send, bytes, receive, bytes * static_cast<std::size_t>(comm->size))) {
    return kInvalidArgument;
  }
  Call call;
  call.kind = Call::Kind::kGather;
  call.send = static_cast<const char*>(send);
  call.receive = static_cast<char*>(receive);
  call.bytes = bytes;
  return add(comm, stream, call);
}

DOUBLE_API Status ncclReduceScatter(const void* send, void* receive, std::size_t elements, int type,
                                    int op, ncclComm* comm, void* stream) {
  count("ncclReduceScatter");
  const std::size_t share = elements * element_bytes(type);
  const std::size_t bytes = share * static_cast<std::size_t>(comm->size);
  if (!are_device(send, bytes, receive, share)) return kInvalidArgument;
  Call call;
  call.kind = Call::Kind::kReduceScatter;
  call.send = static_cast<const char*>(send);
  call.receive = static_cast<char*>(receive);
  call.bytes = bytes;
  call.type = type;
  call.op = op;
  return add(comm, stream, call);
}

DOUBLE_API Status ncclSend(const void* send, std::size_t elements, int type, int peer,
                           ncclComm* comm, void* stream) {
  count("ncclSend");
  const std::size_t bytes = elements * element_bytes(type);
  if (!are_device(send, bytes, nullptr, 0)) return kInvalidArgument;
  Call call;
  call.transfer = {const_cast<char*>(static_cast<const char*>(send)), bytes, peer, true, 0};
  return add(comm, stream, call);
}

DOUBLE_API Status ncclRecv(void* receive, std::size_t elements, int type, int peer, ncclComm* comm,
                           void* stream) {
  count("ncclRecv");
  const std::size_t bytes = elements * element_bytes(type);
  if (!are_device(nullptr, 0, receive, bytes)) return kInvalidArgument;
  Call call;
  call.transfer = {static_cast<char*>(receive), bytes, peer, false, 0};
  return add(comm, stream, call);
}

#if NCCL_DOUBLE_LACKS < 1
DOUBLE_API Status ncclAlltoAll(const void* send, void* receive, std::size_t elements, int type,
                               ncclComm* comm, void* stream) {
  count("ncclAlltoAll");
  const std::size_t bytes = elements * element_bytes(type);
  ncclGroupStart();
  for (int peer = 0; peer < comm->size; ++peer) {
    const std::size_t place = bytes * static_cast<std::size_t>(peer);
    ncclSend(static_cast<const char*>(send) + place, elements, type, peer, comm, stream);
    ncclRecv(static_cast<char*>(receive) + place, elements, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}
#endif
