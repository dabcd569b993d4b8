// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "proto/os/clock.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kShortDigits = 12;
constexpr char kFinished[] = "finished jobs: ivyctl ps -a";
// Limit of candidates listed in a message.
constexpr std::size_t kMaxListed = 16;
// A launcher that has just started creates its socket a moment later.
constexpr int kConnectTries = 20;
constexpr useconds_t kConnectPauseMicroseconds = 50'000;

// Returns "running jobs: 3f2a91c07d55 (bert), 77aa00112233", with names by id.
std::string listed(const std::vector<FoundJob>& jobs, const JobNames& names = {}) {
  std::string text = jobs.size() == 1 ? "running job:" : "running jobs:";
  for (std::size_t i = 0; i < std::min(jobs.size(), kMaxListed); ++i) {
    const std::string& id = jobs[i].directory.job_id;
    const auto name = names.find(id);
    text += (i == 0 ? " " : ", ") + short_id(id) +
            (name == names.end() || name->second.empty() ? "" : " (" + name->second + ")");
  }
  if (jobs.size() > kMaxListed)
    text += " and " + std::to_string(jobs.size() - kMaxListed) + " more";
  return text;
}

Result<Descriptor> connect_to(const std::string& path) {
  SocketAddress address = unix_address(path);
  if (!address.is_valid()) return Error{Code::kInvalidArgument, "socket path is too long: " + path};
  int error = 0;
  for (int tries = 0; tries < kConnectTries; ++tries) {
    if (tries > 0) usleep(kConnectPauseMicroseconds);
    Descriptor socket(address.open_socket());
    if (!socket) return errno_error(Code::kResourceExhausted, "socket", errno);
    if (connect(socket.get(), address.get(), address.size) == 0) return socket;
    error = errno;
    // EAGAIN: the launcher's backlog is full.
    if (error != ENOENT && error != EAGAIN) break;
  }
  return errno_error(Code::kUnavailable, "cannot connect to the job's ivyrun at " + path, error);
}

}  // namespace

std::string short_id(const std::string& job_id) { return job_id.substr(0, kShortDigits); }

Result<FoundJob> choose_job(const std::string& prefix, const std::vector<FoundJob>& jobs,
                            const JobNames& names) {
  std::vector<FoundJob> matching;
  for (const FoundJob& job : jobs)
    if (job.directory.job_id.starts_with(prefix)) matching.push_back(job);
  if (matching.size() == 1) return matching.front();
  if (jobs.empty())
    return Error{Code::kNotFound, "you have no running jobs on this host",
                 std::string("a job is listed on the host where its ivyrun runs; ") + kFinished};
  if (prefix.empty())
    return Error{Code::kInvalidArgument,
                 "which job? You have " + std::to_string(jobs.size()) + " running jobs",
                 listed(jobs, names)};
  if (matching.empty())
    return Error{Code::kInvalidArgument, "no running job matches \"" + prefix + "\"",
                 listed(jobs, names) + "; " + kFinished};
  return Error{Code::kInvalidArgument,
               std::to_string(matching.size()) + " job ids start with \"" + prefix + "\"",
               listed(matching, names)};
}

Result<FoundJob> choose_job(const std::string& prefix) {
  const std::vector<FoundJob> jobs = find_launcher_directories();
  Result<FoundJob> chosen = choose_job(prefix, jobs, {});
  const bool is_id = std::any_of(jobs.begin(), jobs.end(), [&](const FoundJob& job) {
    return job.directory.job_id.starts_with(prefix);
  });
  if (chosen.ok() || (is_id && !prefix.empty())) return chosen;
  // Search by --name, which only the job's launcher knows.
  std::vector<FoundJob> named;
  JobNames names;
  for (const FoundJob& job : jobs) {
    if (!job.is_alive) continue;
    const Result<ctl::JobDescription> described = describe_job(job.directory);
    if (!described.ok()) continue;
    names[job.directory.job_id] = RemoteText(described->name()).line();
    if (!prefix.empty() && described->name() == prefix) named.push_back(job);
  }
  if (named.size() == 1) return named.front();
  if (named.empty()) return choose_job(prefix, jobs, names);
  return Error{Code::kInvalidArgument,
               std::to_string(named.size()) + " jobs are named \"" + prefix + "\"",
               listed(named, names)};
}

Result<FoundJob> choose_running_job(const std::string& prefix) {
  FoundJob job = IVY_TRY(choose_job(prefix));
  if (job.is_alive) return job;
  const std::string id = short_id(job.directory.job_id);
  return Error{Code::kFailedPrecondition, "the launcher of job " + id + " has exited",
               "ivyctl attach " + id +
                   " starts another; without one, its hosts stop the job when its lease expires"};
}

Result<CtlConnection> CtlConnection::send_request(const LauncherDirectory& directory,
                                                  const ctl::Request& request) {
  CtlConnection connection(IVY_TRY(connect_to(directory.socket())));
  const std::string bytes = encode_ctl(request);
  // A request is far smaller than a socket's buffer.
  if (send(connection.socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(bytes.size()))
    return errno_error(Code::kUnavailable, "send a request to the job's ivyrun", errno);
  return connection;
}

Result<ctl::Reply> parse_reply(const std::string& message) {
  ctl::Reply reply;
  if (!reply.ParseFromString(message))
    return Error{Code::kDataLoss, "the job's ivyrun sent an invalid reply"};
  if (reply.has_refused())
    return Error{Code::kFailedPrecondition, reply.refused().text(), reply.refused().fix()};
  return reply;
}

Result<ctl::Reply> CtlConnection::receive(milliseconds timeout) {
  const std::int64_t deadline_ns = monotonic_ns() + std::chrono::nanoseconds(timeout).count();
  for (;;) {
    const std::optional<std::string> message = IVY_TRY(decoder_.next());
    if (message) return parse_reply(*message);
    const std::int64_t left_ms = (deadline_ns - monotonic_ns()) / 1'000'000;
    if (left_ms <= 0)
      return Error{Code::kDeadlineExceeded, "the job's ivyrun does not respond",
                   "it may be stopped or overloaded: ps shows its state"};
    pollfd poller{socket_.get(), POLLIN, 0};
    if (poll(&poller, 1, static_cast<int>(left_ms) + 1) <= 0) continue;
    std::array<char, 65536> buffer;
    const ssize_t count = read(socket_.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) return Error{Code::kUnavailable, "the job's ivyrun closed the connection"};
    decoder_.feed(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  }
}

Result<ctl::Reply> request_reply(const LauncherDirectory& directory, const ctl::Request& request,
                                 milliseconds timeout) {
  CtlConnection connection = IVY_TRY(CtlConnection::send_request(directory, request));
  return connection.receive(timeout);
}

Result<ctl::JobDescription> describe_job(const LauncherDirectory& directory) {
  ctl::Request request;
  request.mutable_describe();
  return IVY_TRY(request_reply(directory, request)).description();
}

Result<void> check_ranks(const ShowRanks& wanted, std::uint32_t world_size) {
  const bool has_one = std::any_of(wanted.ranks.begin(), wanted.ranks.end(), [&](int rank) {
    return static_cast<std::uint32_t>(rank) < world_size;
  });
  // A job that is not planned yet has no ranks at all.
  if (wanted.all || wanted.first_per_host || has_one || world_size == 0) return {};
  return Error{Code::kNotFound, "this job has none of these ranks",
               "--ranks takes numbers from 0 to " + std::to_string(world_size - 1)};
}

Result<void> add_ranks(const ShowRanks& wanted, const LauncherDirectory& directory,
                       google::protobuf::RepeatedPtrField<ctl::RankRange>& ranges) {
  if (wanted.all) return {};
  IVY_CHECK(check_ranks(wanted, IVY_TRY(describe_job(directory)).world_size()));
  for (const int rank : wanted.ranks) {
    const auto number = static_cast<std::uint32_t>(rank);
    const bool continues = !ranges.empty() && ranges.rbegin()->last() + 1 == number;
    ctl::RankRange& range = continues ? *ranges.rbegin() : *ranges.Add();
    if (!continues) range.set_first(number);
    range.set_last(number);
  }
  return {};
}

std::string ended_text(const EndedJob& ended) {
  EndedJob printed = ended;
  // For "note[IVY-R003]: stopped by ivyctl", keep only the text after the launcher's prefix.
  if (const std::size_t at = printed.cause.find("]: "); at != std::string::npos)
    if (printed.cause.find("[IVY-") < at) printed.cause.erase(0, at + 3);
  return "job " + short_id(ended.job_id) + " has finished: " + how_it_ended(printed);
}

}  // namespace ivy
