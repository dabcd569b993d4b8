// SPDX-License-Identifier: Apache-2.0
#include "comm/join/private_store.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/not_inherited.h"
#include "proto/os/process.h"
#include "proto/os/spawn_setup.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kProgram = "ivy-rendezvous";
// Numbers of the child's descriptors; it inherits nothing above them.
constexpr int kControl = 3;
constexpr int kToken = 4;
constexpr int kListening = 5;
constexpr int kOwner = 6;
constexpr int kFirstClosed = 7;
constexpr int kAway = 16;  // Own descriptors are first moved to this number or above.

// Moves a descriptor above those of the child.
bool move_away(Descriptor& descriptor) {
  descriptor.reset(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kAway));
  return static_cast<bool>(descriptor);
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Returns the directories of the file that contains this code: libivycomm.so.1, or a test that is
// linked with it.
std::vector<std::string> own_directories() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&find_rendezvous), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  std::vector<std::string> found{directory_of(info.dli_fname)};
  char real[PATH_MAX];
  if (realpath(info.dli_fname, real) != nullptr && directory_of(real) != found[0]) {
    found.push_back(directory_of(real));
  }
  return found;
}

// Returns the program's absolute path, because the child changes its directory before it executes
// the program.
Result<std::string> program_at(const std::string& path) {
  char real[PATH_MAX];
  if (access(path.c_str(), X_OK) == 0 && realpath(path.c_str(), real) != nullptr) {
    return std::string(real);
  }
  return errno_error(Code::kNotFound, path, errno);
}

void prepare(SpawnSetup& setup, const std::array<std::pair<int, int>, 4>& descriptors) {
  // An inherited standard output would keep a pipe of the launcher open after rank 0 has exited.
  for (const int fd : {0, 1, 2}) setup.open_null(fd);
  for (const auto& [from, to] : descriptors) setup.copy(from, to);
  setup.close_from(kFirstClosed);
  posix_spawn_file_actions_addchdir_np(&setup.actions, "/");
  // Ctrl-C is meant for the ranks, which need the store while they exit.
  setup.set_signals_and_session();
}

Result<void> run(const std::string& program, const PrivateStoreOptions& options,
                 const std::array<std::pair<int, int>, 4>& descriptors) {
  SpawnSetup setup;
  prepare(setup, descriptors);
  const std::vector<std::string> words{kProgram,       "serve",
                                       "--job",        options.job_id,
                                       "--generation", std::to_string(options.generation),
                                       "--control-fd", std::to_string(kControl),
                                       "--token-fd",   std::to_string(kToken),
                                       "--native-fd",  std::to_string(kListening),
                                       "--owner-fd",   std::to_string(kOwner)};
  pid_t child = -1;
  const int failed = posix_spawn(&child, program.c_str(), &setup.actions, &setup.attributes,
                                 exec_array(words).data(), environ);
  if (failed != 0) {
    Error error = errno_error(Code::kUnavailable, "start " + program, failed);
    error.fix = "set IVY_RENDEZVOUS to an executable ivy-rendezvous of this build";
    return error;
  }
  // The program continues in a child of its own and exits immediately. A process that ignores
  // SIGCHLD has no child to wait for.
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {};
}

// Reads lines until "ready". Any other line is the reason why the store does not serve.
Result<void> await_ready(int control, const std::string& program) {
  const auto end = steady_now() + PrivateStore::kStartTime;
  std::string output;
  while (output.find("ready\n") == std::string::npos) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - steady_now()).count();
    pollfd polled = {control, POLLIN, 0};
    const int ready = left > 0 ? poll(&polled, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Error{Code::kUnavailable, program + " did not start to serve in time"};
    char buffer[1024];
    const ssize_t count = recv(control, buffer, sizeof buffer, 0);
    if (count > 0) {
      output.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return Error{Code::kUnavailable,
                   program + " exited immediately" + (output.empty() ? "" : ": " + output),
                   "check that it belongs to this build, and run it by hand with --help"};
    }
  }
  return {};
}

}  // namespace

Result<std::string> find_rendezvous() {
  const char* const named = std::getenv("IVY_RENDEZVOUS");
  if (named != nullptr && *named != '\0') {
    const Result<std::string> program = program_at(named);
    return program.ok() ? program : program.error().context("IVY_RENDEZVOUS");
  }
  std::string searched;
  for (const std::string& directory : own_directories()) {
    for (const char* const prefix : {"/", "/../bin/", "/../../bin/"}) {
      const std::string path = directory + prefix + kProgram;
      const Result<std::string> program = program_at(path);
      if (program.ok()) return program;
      searched += (searched.empty() ? "" : ", ") + path;
    }
  }
  return Error{Code::kNotFound,
               std::string(kProgram) + ", which rank 0 starts, was not found: " + searched,
               "install it next to libivycomm, or set IVY_RENDEZVOUS to its path"};
}

Result<std::unique_ptr<PrivateStore>> PrivateStore::start(const PrivateStoreOptions& options) {
  const std::string program = IVY_TRY(find_rendezvous());
  if (options.token.size() > kTokenBytesMax) {
    return Error{Code::kInvalidArgument,
                 "a token has at most " + std::to_string(kTokenBytesMax) + " bytes"};
  }
  int pair[2] = {-1, -1};
  const int own_end = not_inherited::open(
      [&] { return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 ? pair[0] : -1; });
  if (own_end < 0) return errno_error(Code::kResourceExhausted, "create a socket", errno);
  Descriptor own(own_end);
  Descriptor child_end(pair[1]);
  auto [token, token_writer] = make_pipe();
  if (!token) return errno_error(Code::kResourceExhausted, "create a pipe", errno);
  const ssize_t written = write(token_writer.get(), options.token.data(), options.token.size());
  token_writer.reset();
  Descriptor owner(open_pidfd(getpid()));
  Descriptor life;
  if (owner.get() < 0 && errno == ENOSYS) {  // Kernels before 5.3: the end of a pipe instead.
    int ends[2] = {-1, -1};
    life.reset(not_inherited::open([&] { return pipe2(ends, O_CLOEXEC) == 0 ? ends[1] : -1; }));
    owner.reset(ends[0]);
  }
  Descriptor listening(fcntl(options.listening, F_DUPFD_CLOEXEC, kAway));
  if (written != static_cast<ssize_t>(options.token.size()) || listening.get() < 0 ||
      owner.get() < 0 || !move_away(child_end) || !move_away(token) || !move_away(owner)) {
    return errno_error(Code::kResourceExhausted, "prepare " + program, errno);
  }
  IVY_CHECK(run(program, options,
                {{{child_end.get(), kControl},
                  {token.get(), kToken},
                  {listening.get(), kListening},
                  {owner.get(), kOwner}}}));
  child_end.reset();
  IVY_CHECK(await_ready(own.get(), program));
  return std::unique_ptr<PrivateStore>(new PrivateStore(own.release(), life.release()));
}

PrivateStore::PrivateStore(int control, int life)
    : control_(control), life_(life), owner_(getpid()) {}

void PrivateStore::reject_joins() const {
  constexpr std::string_view kOrder = "complete\n";
  static_cast<void>(send(control_, kOrder.data(), kOrder.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

PrivateStore::~PrivateStore() {
  // Shut it down, because a process that was forked in the meantime may also hold the descriptor.
  if (getpid() == owner_) shutdown(control_, SHUT_RDWR);
  not_inherited::close(control_);
  if (life_ >= 0) not_inherited::close(life_);
}

}  // namespace ivy::comm
