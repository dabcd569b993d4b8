// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_reports.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "launcher/screen/json_text.h"
#include "launcher/screen/machine_output.h"
#include "launcher/screen/rank_file_set.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// Maximum bytes of event lines waiting to be written. A job has a few lines of some 250 bytes for
// each rank.
constexpr std::size_t kMaxQueuedEventBytes = 64u << 20;
// How long the end of a job waits for these lines. They are short, so a file system that has not
// taken them by then has probably hung.
constexpr std::chrono::milliseconds kEventTimeout{2'000};

// The first snapshot of --metrics-file is written this long after the workers were started.
constexpr std::chrono::seconds kFirstMetrics{1};
constexpr std::chrono::seconds kMetricsPeriod{15};
// How long the end of a job waits for the last snapshot.
constexpr std::chrono::milliseconds kMetricsTimeout{500};

// Opens the file for appending, so that each line is written as a whole even if jobs share the
// file. As with a shell's `>>`, only the umask limits who may use it.
FileWriter::Opener event_opener(const std::string& path) {
  return [path] {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
    return fd < 0 ? -errno : fd;
  };
}

// The collector of the metrics may run as another user (node_exporter), but only this user may
// write the file.
FileWriter::Opener metrics_opener(const std::string& path) {
  return [path] {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd;
  };
}

void keep_first(std::string& error, std::string_view newer) {
  if (error.empty()) error = newer;
}

boost::json::object stamped(std::string_view event, const JobRequest& request) {
  boost::json::object object{{"schema", kMachineSchema},
                             {"event", event},
                             {"time_unix_ms", wall_ms()},
                             {"job", request.identity.job_id}};
  if (!request.options.name.empty()) object["name"] = json_text(request.options.name);
  return object;
}

std::string absolute_from(const std::string& folder, const std::string& path) {
  return path.empty() || path.starts_with('/') ? path : folder + "/" + path;
}

}  // namespace

boost::json::object plan_object(const Options& options, const JobPlan& plan) {
  boost::json::object object{{"world_size", plan.world_size},
                             {"rule", json_text(plan.rule)},
                             {"master_address", json_text(plan.master_address)},
                             {"master_port", plan.master_port},
                             {"store_port", plan.store_port},
                             {"working_directory", json_text(options.working_directory)},
                             {"command", json_list(plan.arguments)}};
  boost::json::array hosts;
  for (const PlannedHost& host : plan.hosts) {
    boost::json::array ranks;
    for (const PlannedWorker& worker : host.workers) ranks.emplace_back(worker.rank);
    hosts.push_back({{"host", json_text(host.name)},
                     {"node_rank", host.node_rank},
                     {"transport", transport_name(host.transport)},
                     {"ranks", std::move(ranks)}});
  }
  object["hosts"] = std::move(hosts);
  if (!plan.spares.empty()) object["spares"] = json_list(plan.spares);
  return object;
}

JobReports::JobReports(boost::asio::io_context& loop, const JobRequest& request)
    : request_(request),
      writer_(kMaxQueuedEventBytes, /*done=*/nullptr),  // take_done() is called with each event.
      metrics_(loop, request.options.dry_run ? "" : request.options.metrics_file) {
  const std::string& target = request.options.events;
  if (target.empty() || request.options.dry_run) return;
  if (!target.starts_with("fd:")) {
    file_ = writer_.open(event_opener(target));
    return;
  }
  const int given = to_number<int>(target.substr(3)).value_or(-1);
  const int own = fcntl(given, F_DUPFD_CLOEXEC, 3);
  if (own < 0) {
    events_error_ = std::strerror(errno);
    return;
  }
  // Workers and transports must not inherit the descriptor; a standard stream stays as it is.
  if (given > STDERR_FILENO) fcntl(given, F_SETFD, FD_CLOEXEC);
  file_ = writer_.adopt(own);
}

void JobReports::write(std::string_view event, boost::json::object fields) {
  if (!is_wanted()) return;
  take_done();
  if (!writer_.has_room()) return keep_first(events_error_, "the file system does not respond");
  boost::json::object line = stamped(event, request_);
  for (auto& field : fields) line[field.key()] = std::move(field.value());
  writer_.write(file_, json_line(line) + "\n");
}

void JobReports::take_done() {
  for (const FileWriter::Done& done : writer_.take_done())
    if (done.errno_value != 0)
      keep_first(done.file == file_ ? events_error_ : attempt_error_,
                 std::strerror(done.errno_value));
}

void JobReports::planned(const JobPlan& plan) {
  if (is_wanted()) write("plan", plan_object(request_.options, plan));
}

void JobReports::started(std::uint32_t generation, int max_attempts, std::int64_t started_at_ns) {
  printed_ranks_.clear();
  started_at_ns_ = started_at_ns;
  write("start", {{"attempt", generation + 1}, {"max_attempts", max_attempts}});
}

bool JobReports::wants_verdict(const std::string& folder) const {
  return is_wanted() || !folder.empty() || request_.options.summary == SummaryChoice::kJson;
}

void JobReports::first_output(int rank, int stream) {
  if (!printed_ranks_.insert(rank).second) return;
  const std::int64_t passed_ms = (monotonic_ns() - started_at_ns_) / 1'000'000;
  write("first_output", {{"rank", rank},
                         {"stream", stream == 2 ? "stderr" : "stdout"},
                         {"after_s", static_cast<double>(passed_ms) / 1e3}});
}

void JobReports::exited(const WorkerEnd& end) {
  if (is_wanted()) write("exit", end_object(end, started_at_ns_));
}

void JobReports::host_lost(const std::string& host, HostLoss loss, const RemoteText& cause,
                           const std::vector<std::uint32_t>& ranks) {
  write("host_lost", {{"host", json_text(host)},
                      {"reason", loss == HostLoss::kHost ? "host_lost" : "supervisor_lost"},
                      {"cause", json_text(cause.line())},
                      {"ranks", boost::json::array(ranks.begin(), ranks.end())}});
}

void JobReports::spare_used(int node_rank, const std::string& host, const std::string& spare) {
  write("spare_used",
        {{"node_rank", node_rank}, {"host", json_text(host)}, {"spare", json_text(spare)}});
}

void JobReports::host_joined(const std::string& host) {
  write("host_joined", {{"host", json_text(host)}});
}

void JobReports::check_failed(const CheckFailure& failure, int attempt, bool is_left_out) {
  write("check_failed", {{"host", json_text(failure.name)},
                         {"check", json_text(failure.check)},
                         {"id", failure.id},
                         {"reason", json_text(failure.reason.line())},
                         {"attempt", attempt},
                         {"left_out", is_left_out}});
}

void JobReports::notice(const std::string& host, const std::string& source,
                        const std::string& reason, std::optional<std::int64_t> deadline_ns,
                        bool withdrawn) {
  boost::json::object fields{{"source", json_text(source)}, {"reason", json_text(reason)}};
  if (!host.empty()) fields["host"] = json_text(host);
  if (deadline_ns)
    fields["deadline_unix_ms"] = wall_ms() + (*deadline_ns - monotonic_ns()) / 1'000'000;
  if (withdrawn) fields["withdrawn"] = true;
  write("notice", std::move(fields));
}

void JobReports::restarts(const FailedAttempt& attempt, std::chrono::milliseconds pause) {
  boost::json::object event{{"failed_attempt", attempt.number},
                            {"cause", json_text(attempt.cause)},
                            {"pause_s", static_cast<double>(pause.count()) / 1e3}};
  if (!attempt.condemned.empty()) event["condemned"] = json_text(attempt.condemned);
  write("restart", std::move(event));
}

void JobReports::drill(const InjectedFault& fault, std::string_view state) {
  if (!is_wanted()) return;
  boost::json::array hosts;
  for (const std::string& host : fault.hosts) hosts.push_back(json_text(host));
  boost::json::object fields{{"state", state},
                             {"number", fault.number},
                             {"fault", fault_name(fault.fault)},
                             {"ranks", boost::json::array(fault.ranks.begin(), fault.ranks.end())},
                             {"hosts", std::move(hosts)},
                             {"attempt", fault.generation + 1},
                             {"at_s", fault.at_s}};
  if (state == "result") {
    const auto passed_s = [&fault](std::int64_t at_ns) -> boost::json::value {
      if (at_ns == 0) return nullptr;
      return static_cast<double>(at_ns - fault.at_ns) / 1e9;
    };
    fields["named_after_s"] = passed_s(fault.named_ns);
    fields["named_as"] = json_text(fault.named_as);
    fields["named_correctly"] = json_text(correctness_text(fault));
    fields["recovered_after_s"] = passed_s(fault.recovered_ns);
    fields["steps_lost"] =
        fault.steps_lost ? boost::json::value(*fault.steps_lost) : boost::json::value(nullptr);
  }
  write("drill", std::move(fields));
}

void JobReports::write_attempt_file(const std::string& folder, const boost::json::object& verdict) {
  if (folder.empty()) return;
  boost::json::object object = stamped("attempt", request_);
  for (const auto& field : verdict) object[field.key()] = field.value();
  // A launcher that has taken the job over does not know when it was started.
  if (started_at_ns_ != 0)
    object["started_unix_ms"] = wall_ms() - (monotonic_ns() - started_at_ns_) / 1'000'000;
  object["command"] = json_list(request_.options.command);
  const FileWriter::File file = writer_.open(
      log_opener(absolute_from(request_.started_in, folder) + "/attempt.json", /*appends=*/false));
  writer_.write(file, json_line(object) + "\n");
  writer_.close(file);
}

void JobReports::verdict(const boost::json::object& verdict) { write("verdict", verdict); }

void JobReports::finish() {
  writer_.wait_idle(kEventTimeout);
  take_done();
}

std::vector<std::string> JobReports::write_errors() {
  take_done();
  std::vector<std::string> errors;
  if (!events_error_.empty())
    errors.push_back("--events " + request_.options.events + ": " + events_error_ +
                     "; some events were not written");
  if (!attempt_error_.empty()) errors.push_back("attempt.json of --log-dir: " + attempt_error_);
  if (std::string error = metrics_.write_error(); !error.empty()) errors.push_back(error);
  return errors;
}

// has_room() is not used: the queue holds the last snapshot and at most one before it.
MetricsFile::MetricsFile(boost::asio::io_context& loop, std::string path)
    : path_(std::move(path)), writer_(/*room_bytes=*/0, /*done=*/nullptr), timer_(loop) {}

void MetricsFile::begin(MakeText make_text) {
  if (!is_wanted()) return;
  make_text_ = std::move(make_text);
  schedule(kFirstMetrics);
}

void MetricsFile::write() {
  take_done();
  // If the file system is slow, this snapshot is skipped.
  if (writer_.is_idle()) make_text_([this](const std::string& text) { replace(text); });
  schedule(kMetricsPeriod);
}

void MetricsFile::schedule(std::chrono::seconds time) {
  timer_.expires_after(time);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) write();
  });
}

void MetricsFile::replace(std::string_view text) {
  const std::string fresh = path_ + "." + std::to_string(getpid());
  const FileWriter::File file = writer_.open(metrics_opener(fresh));
  writer_.write(file, text);
  writer_.close_and_rename(file, fresh, path_);
}

void MetricsFile::end(const std::string& text) {
  if (!is_wanted()) return;
  timer_.cancel();
  replace(text);
  writer_.wait_idle(kMetricsTimeout);
}

void MetricsFile::take_done() {
  for (const FileWriter::Done& done : writer_.take_done())
    if (done.errno_value != 0) keep_first(error_, std::strerror(done.errno_value));
}

std::string MetricsFile::write_error() {
  take_done();
  return error_.empty() ? "" : "--metrics-file " + path_ + ": " + error_;
}

}  // namespace ivy
