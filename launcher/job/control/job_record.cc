// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/job_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "proto/contract/build.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// After the lease, hosts also need the grace of a lost launcher; clocks are read with a precision
// of seconds.
constexpr std::chrono::seconds kRecordMargin{10};

template <class From, class To>
void copy_words(const From& from, To& to) {
  to.assign(from.begin(), from.end());
}

// Returns a list that this build has recorded; a job record of another build is not read.
std::vector<Cause> recorded_causes(const std::string& text) {
  if (text.empty()) return {};
  Result<std::vector<Cause>> causes = parse_cause_list(text);
  return causes.ok() ? std::move(causes).value() : std::vector<Cause>();
}

}  // namespace

Result<void> write_job_record(const LauncherDirectory& directory, const ctl::JobRecord& record) {
  const std::string path = directory.record();
  const std::string fresh = path + ".new";
  const std::string bytes = record.SerializeAsString();
  unlink(fresh.c_str());
  const Descriptor file(
      open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return errno_error(Code::kUnavailable, "open " + fresh, errno);
  if (!write_all(file.get(), bytes))
    return errno_error(Code::kResourceExhausted, "write " + fresh, errno);
  renew_job_record(directory, milliseconds(record.options().lease_ms() +
                                           record.options().shutdown_timeout_ms()));
  if (rename(fresh.c_str(), path.c_str()) == 0) return {};
  return errno_error(Code::kUnavailable, "rename " + fresh, errno);
}

Result<ctl::JobRecord> read_job_record(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error(Code::kNotFound, "read " + path, errno);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ctl::JobRecord record;
  if (!record.ParseFromString(bytes) || record.job_id().empty())
    return Error{Code::kDataLoss, path + " is not a job record"};
  if (record.build() != build_name())
    return Error{Code::kFailedPrecondition,
                 "the job was started by build " + record.build() + ", this is build " +
                     std::string(build_name()),
                 "use the ivyctl and ivyrun that started it"};
  return record;
}

void renew_job_record(const LauncherDirectory& directory, milliseconds timeout) {
  const auto until =
      wall_s() + std::chrono::duration_cast<std::chrono::seconds>(timeout + kRecordMargin).count();
  const timespec times[2] = {{until, 0}, {until, 0}};
  for (const std::string& path : {directory.record(), directory.record() + ".new"})
    utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

milliseconds time_since_start(const ctl::JobRecord& record) {
  return std::max(milliseconds(wall_ms() - record.started_unix_ms()), milliseconds(0));
}

void describe_hosts(const JobPlan& plan, ctl::JobDescription& job) {
  for (const PlannedHost& planned : plan.hosts) {
    ctl::HostPart& part = *job.add_hosts();
    part.set_name(planned.name);
    part.set_ranks(static_cast<std::uint32_t>(planned.workers.size()));
    if (!planned.workers.empty())
      part.set_first_rank(static_cast<std::uint32_t>(planned.workers.front().rank));
  }
}

// Records the options that are read after the start of the workers, with these exceptions:
// --events, because the program that read the events has exited with the launcher; --hosts-from;
// and the options about the end of an allocation, which only the first launcher watches.
void record_options(const Options& options, ctl::RecordedOptions& recorded) {
  for (const std::string& word : options.command) recorded.add_command(word);
  recorded.set_working_directory(options.working_directory);
  recorded.set_log_dir(options.log_dir);
  recorded.set_output(options.output);
  recorded.set_log_to(static_cast<std::uint32_t>(options.log_to));
  recorded.set_quiet(options.quiet);
  if (options.lease) recorded.set_lease_ms(static_cast<std::uint32_t>(options.lease->count()));
  recorded.set_has_shutdown_timeout(options.shutdown_timeout.has_value());
  recorded.set_shutdown_timeout_ms(
      static_cast<std::uint64_t>(options.shutdown_timeout.value_or(milliseconds(0)).count()));
  recorded.set_has_timeout(options.timeout.has_value());
  recorded.set_timeout_ms(
      static_cast<std::uint64_t>(options.timeout.value_or(milliseconds(0)).count()));
  recorded.set_transport(static_cast<std::uint32_t>(options.transport));
  recorded.set_ssh_port(options.ssh_port);
  for (const std::string& word : options.ssh_command) recorded.add_ssh_command(word);
  for (const std::string& word : options.ssh_args) recorded.add_ssh_args(word);
  for (const std::string& word : options.exec_command) recorded.add_exec_command(word);
  recorded.set_fanout(static_cast<std::uint32_t>(options.fanout));
  recorded.set_name(options.name);
  for (const FetchRule& rule : options.fetch) {
    ctl::RecordedFetch& fetch = *recorded.add_fetch();
    fetch.set_pattern(rule.pattern);
    fetch.set_directory(rule.directory);
  }
  recorded.set_fetch_limit(options.fetch_limit);
  recorded.set_fetch_timeout_ms(static_cast<std::uint64_t>(options.fetch_timeout.count()));
  recorded.set_stall_seconds(static_cast<std::uint32_t>(options.stall_timeout.count()));
  recorded.set_on_stall(static_cast<std::uint32_t>(options.on_stall));
  recorded.set_exit_timeout_seconds(static_cast<std::uint32_t>(options.exit_timeout.count()));
  recorded.set_metrics_file(options.metrics_file);
  recorded.set_start_timeout_ms(static_cast<std::uint64_t>(options.start_timeout.count()));
  recorded.set_no_store(options.no_store);
  recorded.set_no_python_hook(options.no_python_hook);
  recorded.set_on_failure(static_cast<std::uint32_t>(options.on_failure));
  recorded.set_min_workers(static_cast<std::uint32_t>(options.min_workers));
  recorded.set_max_replacements(static_cast<std::uint32_t>(options.max_replacements));
  recorded.set_restart_on(cause_list_text(options.restart_on));
  recorded.set_never_restart(cause_list_text(options.never_restart));
  for (const std::string& check : options.checks) recorded.add_checks(check);
  recorded.set_default_checks(options.default_checks);
  recorded.set_check_timeout_ms(static_cast<std::uint64_t>(options.check_timeout.count()));
  if (options.expect_gpus)
    recorded.set_expect_gpus(static_cast<std::uint32_t>(*options.expect_gpus) + 1);
  recorded.set_check_load(options.check_load);
  recorded.set_notice_ms(static_cast<std::uint64_t>(options.notice_time.count()));
  recorded.set_preempt_signal(static_cast<std::uint32_t>(options.preempt_signal.value_or(0)));
  if (options.progress_match) recorded.set_progress_match(options.progress_match->text());
  recorded.set_progress_file(options.progress_file);
  recorded.set_condemn_on(cause_list_text(options.condemn_on));
  recorded.set_linger_ms(static_cast<std::uint64_t>(options.linger.count()));
}

Options recorded_options(const ctl::RecordedOptions& recorded) {
  Options options;
  options.detach = true;
  options.input.kind = InputChoice::Kind::kNone;
  copy_words(recorded.command(), options.command);
  options.working_directory = recorded.working_directory();
  options.log_dir = recorded.log_dir();
  options.output = recorded.output();
  options.log_to = static_cast<LogLocation>(recorded.log_to());
  options.quiet = recorded.quiet();
  options.lease = milliseconds(recorded.lease_ms());
  if (recorded.has_shutdown_timeout())
    options.shutdown_timeout = milliseconds(recorded.shutdown_timeout_ms());
  if (recorded.has_timeout()) options.timeout = milliseconds(recorded.timeout_ms());
  options.transport = static_cast<TransportChoice>(recorded.transport());
  options.ssh_port = static_cast<std::uint16_t>(recorded.ssh_port());
  copy_words(recorded.ssh_command(), options.ssh_command);
  copy_words(recorded.ssh_args(), options.ssh_args);
  copy_words(recorded.exec_command(), options.exec_command);
  options.fanout = static_cast<int>(recorded.fanout());
  options.name = recorded.name();
  for (const ctl::RecordedFetch& fetch : recorded.fetch())
    options.fetch.push_back({fetch.pattern(), fetch.directory()});
  options.fetch_limit = recorded.fetch_limit();
  options.fetch_timeout = milliseconds(recorded.fetch_timeout_ms());
  options.stall_timeout = std::chrono::seconds(recorded.stall_seconds());
  options.on_stall = static_cast<OnStall>(recorded.on_stall());
  options.exit_timeout = std::chrono::seconds(recorded.exit_timeout_seconds());
  options.metrics_file = recorded.metrics_file();
  options.start_timeout = milliseconds(recorded.start_timeout_ms());
  options.no_store = recorded.no_store();
  options.no_python_hook = recorded.no_python_hook();
  options.on_failure = static_cast<OnFailure>(recorded.on_failure());
  options.min_workers = static_cast<int>(recorded.min_workers());
  options.max_replacements = static_cast<int>(recorded.max_replacements());
  options.restart_on = recorded_causes(recorded.restart_on());
  options.never_restart = recorded_causes(recorded.never_restart());
  copy_words(recorded.checks(), options.checks);
  options.default_checks = recorded.default_checks();
  options.check_timeout = milliseconds(recorded.check_timeout_ms());
  if (recorded.expect_gpus() > 0)
    options.expect_gpus = static_cast<int>(recorded.expect_gpus()) - 1;
  options.check_load = recorded.check_load();
  options.notice_time = milliseconds(recorded.notice_ms());
  if (recorded.preempt_signal() != 0)
    options.preempt_signal = static_cast<int>(recorded.preempt_signal());
  if (!recorded.progress_match().empty()) {
    Result<Pattern> pattern = Pattern::compile(recorded.progress_match());
    if (pattern.ok()) options.progress_match = std::move(pattern).value();
  }
  options.progress_file = recorded.progress_file();
  options.condemn_on = recorded_causes(recorded.condemn_on());
  options.linger = milliseconds(recorded.linger_ms());
  return options;
}

void record_hosts(const std::vector<Host>& hosts, ctl::JobRecord& record) {
  for (const Host& host : hosts) {
    ctl::RecordedHost& recorded = *record.add_hosts();
    recorded.set_name(host.name);
    recorded.set_user(host.user);
    recorded.set_port(host.port);
    recorded.set_is_fake(host.fake.has_value());
    recorded.set_fake(static_cast<std::uint32_t>(host.fake.value_or(0)));
  }
}

std::vector<Host> recorded_hosts(const ctl::JobRecord& record) {
  std::vector<Host> hosts;
  for (const ctl::RecordedHost& recorded : record.hosts()) {
    Host& host = hosts.emplace_back();
    host.name = recorded.name();
    host.user = recorded.user();
    host.port = static_cast<std::uint16_t>(recorded.port());
    if (recorded.is_fake()) host.fake = static_cast<int>(recorded.fake());
  }
  return hosts;
}

void record_plan(const JobPlan& plan, ctl::JobRecord& record) {
  record.set_world_size(static_cast<std::uint32_t>(plan.world_size));
  record.set_master_address(plan.master_address);
  record.set_master_port(plan.master_port);
  record.set_store_port(plan.store_port);
  record.set_program(plan.program);
  for (const PlannedHost& planned : plan.hosts) {
    ctl::RecordedPart& part = *record.add_parts();
    part.set_host(static_cast<std::uint32_t>(planned.host_index));
    part.set_transport(transport_name(planned.transport));
    for (const PlannedWorker& worker : planned.workers)
      part.add_ranks(static_cast<std::uint32_t>(worker.rank));
  }
}

JobPlan recorded_plan(const ctl::JobRecord& record) {
  JobPlan plan;
  plan.job_id = record.job_id();
  plan.world_size = static_cast<int>(record.world_size());
  plan.master_address = record.master_address();
  plan.master_port = static_cast<std::uint16_t>(record.master_port());
  plan.store_port = static_cast<std::uint16_t>(record.store_port());
  plan.program = record.program();
  for (const ctl::RecordedPart& part : record.parts()) {
    PlannedHost& planned = plan.hosts.emplace_back();
    planned.host_index = part.host();
    planned.name = part.host() < static_cast<std::uint32_t>(record.hosts_size())
                       ? record.hosts(static_cast<int>(part.host())).name()
                       : "";
    planned.transport = transport_named(part.transport());
    planned.node_rank = static_cast<int>(plan.hosts.size()) - 1;
    for (const std::uint32_t rank : part.ranks())
      planned.workers.push_back(
          PlannedWorker{static_cast<int>(rank), static_cast<int>(planned.workers.size())});
  }
  return plan;
}

}  // namespace ivy
