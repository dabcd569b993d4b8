// SPDX-License-Identifier: Apache-2.0
// ivy-pmix: the PMIx server of one host and one generation of a job. Open MPI's ranks get their
// identities from it and find each other through it. The supervisor starts it when the first rank
// connects (README.md describes their messages); it exits when its standard input closes.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/pmix/event_line.h"
#include "agent/pmix/pmix_host.h"
#include "agent/pmix/rank_socket.h"
#include "agent/pmix/server_directories.h"
#include "proto/os/argument_file.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/wire/handshake.h"
#include "proto/wire/mpi_server_options.h"

namespace ivy {
namespace {

constexpr std::size_t kTokenBytesMax = 4096;
constexpr int kFailed = 1;
constexpr int kUsage = 2;

// Writes lines for the supervisor. libpmix also prints to standard output, so that is redirected to
// standard error.
class EventPipe final : public PmixLines {
 public:
  EventPipe() : pipe_(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  void send_line(const std::string& line) override {
    const std::lock_guard lock(mutex_);
    write_all(pipe_.get(), line, WhenFull::kWait);
  }

 private:
  std::mutex mutex_;
  const Descriptor pipe_;
};

// Removes variables of another PMIx server, which would make this process its client. Chooses the
// two modules that the libraries of Open MPI 4.1 and 5 have in common; others would not suit all
// clients.
void choose_modules() {
  std::vector<std::string> foreign;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    if (variable.starts_with("PMIX_") && !variable.starts_with("PMIX_MCA_"))
      foreign.emplace_back(variable.substr(0, variable.find('=')));
  }
  for (const std::string& name : foreign) unsetenv(name.c_str());
  setenv("PMIX_MCA_gds", "hash", 1);
  setenv("PMIX_MCA_psec", "native", 1);
}

// Returns the termination signals as a descriptor. They are blocked before libpmix's threads start,
// which would receive them otherwise. Signals that the supervisor has blocked are meant for the
// workers, such as a scheduler's signal to the whole step.
Descriptor ending_signals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t before;
  sigset_t ending;
  sigprocmask(SIG_BLOCK, nullptr, &before);
  sigemptyset(&ending);
  for (const int number : {SIGTERM, SIGINT, SIGHUP})
    if (sigismember(&before, number) == 0) sigaddset(&ending, number);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  // Standard input closes at the supervisor's death too, but a KILL would leave the ranks' files
  // behind.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  return Descriptor(signalfd(-1, &ending, SFD_CLOEXEC));
}

Result<std::string> secret_of(const MpiServerOptions& options) {
  if (options.token_file.empty()) return random_bytes(kNonceBytes);
  std::optional<std::string> token = read_file(options.token_file, kTokenBytesMax);
  if (token && !token->empty()) return *std::move(token);
  return Error{Code::kFailedPrecondition, "cannot read the job's token, " + options.token_file};
}

Result<void> serve(const MpiServerOptions& options, EventPipe& events,
                   const std::vector<int>& until) {
  const std::string secret = IVY_TRY(secret_of(options));
  const SessionFiles files = IVY_TRY(SessionFiles::make(options.directory, options.generation));
  const SegmentDirectory segments("/dev/shm",
                                  options.job_id + "-" + std::to_string(options.host) + "-" +
                                      std::to_string(options.generation),
                                  files.session());
  // Never destroyed: libpmix's thread may call its handlers until the process exits.
  auto* const host = new PmixHost(options, secret, events);
  return host->serve({files.server(), files.session(), segments.path()}, until);
}

// Tells each rank that connects why there is no server.
Result<void> reject(int listen_fd, const Error& why, const std::vector<int>& until) {
  RankSocket socket(
      Descriptor(listen_fd),
      [&](std::uint32_t, const RankSocket::Peer&) -> Result<std::vector<std::string>> {
        return why;
      });
  return socket.serve(until);
}

int run(const MpiServerOptions& options, EventPipe& events) {
  const Descriptor signals = ending_signals();
  const std::vector<int> until = {STDIN_FILENO, signals.get()};
  for (const int fd : {options.listen_fd, options.loopback_fd}) fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(options.listen_fd, F_SETFL, fcntl(options.listen_fd, F_GETFL) | O_NONBLOCK);
  choose_modules();
  const Result<void> done = serve(options, events, until);
  if (done.ok()) return 0;
  const Error& why = done.error();
  events.send_line(error_line(why.fix.empty() ? why.message : why.message + "; " + why.fix));
  static_cast<void>(reject(options.listen_fd, why, until).ok());
  return kFailed;
}

// Exits without running destructors, because libpmix's thread is still running.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace
}  // namespace ivy

int main(int argc, char** argv) {
  const int first = argc > 0 ? 1 : 0;
  const ivy::Result<std::vector<std::string>> words =
      ivy::with_argument_file(argc - first, argv + first);
  const ivy::Result<ivy::MpiServerOptions> options =
      words.ok() ? ivy::parse_mpi_server_options(*words) : words.error();
  if (!options.ok()) {
    std::fprintf(stderr, "ivy-pmix: %s\nusage: ivy-pmix %s", options.error().message.c_str(),
                 ivy::kMpiServerUsage);
    return ivy::kUsage;
  }
  ivy::EventPipe events;
  ivy::leave(ivy::run(*options, events));
}
