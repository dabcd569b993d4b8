// SPDX-License-Identifier: Apache-2.0
// ivyctl top: repeatedly shows the operation and the resource usage of each rank.
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_job_rows.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/job/ranks/rank_rows.h"
#include "launcher/options/option_values.h"
#include "launcher/screen/terminal.h"
#include "proto/contract/status.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Pause between two pictures, and between the two samples of a single picture.
constexpr milliseconds kRefreshPause{2'000};
constexpr milliseconds kSamplePause{500};
// For a terminal that does not report its height.
constexpr std::size_t kUsualLines = 24;
// Lines of a picture that show no rank: the job, the header, the count of omitted rows, the cursor.
constexpr std::size_t kOtherLines = 4;

// If a job is silent for this long, the positions of its ranks are queried.
constexpr milliseconds kSilence{10'000};
constexpr milliseconds kStacksLimit{5'000};

// Returns true if ranks are running and none has printed anything for a while.
bool is_silent(const ctl::RanksDescription& ranks) {
  const auto quiet_for = [&](const ctl::RankRow& rank) {
    return rank.output_age_ms() >= 0 ? rank.output_age_ms()
                                     : wall_ms() - ranks.job().since_unix_ms();
  };
  return ranks.job().running() > 0 &&
         std::all_of(ranks.ranks().begin(), ranks.ranks().end(),
                     [&](const ctl::RankRow& rank) { return quiet_for(rank) >= kSilence.count(); });
}

// Returns true if the job is silent and ivycomm does not know the operation of some rank.
bool needs_stacks(const ctl::RanksDescription& ranks) {
  return is_silent(ranks) && std::any_of(ranks.ranks().begin(), ranks.ranks().end(),
                                         [](const auto& rank) { return rank.operation().empty(); });
}

Result<ctl::RanksDescription> request_ranks(const FoundJob& job, bool with_stacks = false) {
  ctl::Request request;
  request.mutable_describe_ranks()->set_places(with_stacks);
  ctl::Reply reply = IVY_TRY(with_stacks ? request_reply(job.directory, request, kStacksLimit)
                                         : request_reply(job.directory, request));
  if (reply.has_ranks()) return std::move(*reply.mutable_ranks());
  return Error{Code::kFailedPrecondition, "this job's ivyrun cannot report what its ranks use",
               "use the ivyctl that was installed with that ivyrun"};
}

std::string fixed(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

bool uses_devices(const ctl::RankRow& rank) { return rank.devices() > 0; }

bool has_device_load(const ctl::RankRow& rank) {
  return uses_devices(rank) && rank.device_percent() >= 0;
}

// A column of the table.
struct RankColumn {
  std::string_view name;
  // cpu: the load since the previous sample, in percent; nullopt: unknown.
  std::string (*cell)(const ctl::RankRow& rank, std::optional<double> cpu);
  bool is_of_devices = false;  // It exists only if a rank uses devices.
};

constexpr RankColumn kColumns[] = {
    {"RANK", [](const ctl::RankRow& rank, auto) { return std::to_string(rank.rank()); }},
    {"HOST", [](const ctl::RankRow& rank, auto) { return table_cell(rank.host(), 24); }},
    {"PID", [](const ctl::RankRow& rank,
               auto) { return rank.pid() == 0 ? "-" : std::to_string(rank.pid()); }},
    {"STATE", [](const ctl::RankRow& rank, auto) { return table_cell(rank.state(), 24); }},
    {"CPU%", [](const ctl::RankRow&,
                std::optional<double> cpu) { return cpu ? fixed("%.0f", *cpu) : "-"; }},
    {"MEMORY", [](const ctl::RankRow& rank,
                  auto) { return rank.has_usage() ? size_text(rank.memory_bytes()) : "-"; }},
    {"PROCS", [](const ctl::RankRow& rank,
                 auto) { return rank.has_usage() ? std::to_string(rank.processes()) : "-"; }},
    {"GPU%",
     [](const ctl::RankRow& rank, auto) {
       return has_device_load(rank) ? std::to_string(rank.device_percent()) : "-";
     },
     true},
    {"GPUMEM",
     [](const ctl::RankRow& rank, auto) {
       return uses_devices(rank) ? size_text(rank.device_bytes()) : "-";
     },
     true},
    {"OUTPUT",
     [](const ctl::RankRow& rank, auto) { return output_age_text(rank.output_age_ms()); }},
    {"IN", [](const ctl::RankRow& rank, auto) {
       return rank.operation().empty() ? "-" : table_cell(rank.operation(), 48);
     }}};

boost::json::object rank_object(const ctl::RankRow& rank, std::optional<double> cpu) {
  boost::json::object object{{"rank", rank.rank()},
                             {"host", json_text(rank.host())},
                             {"pid", rank.pid()},
                             {"state", json_text(rank.state())},
                             {"operation", json_text(rank.operation())}};
  if (cpu) object["cpu_percent"] = *cpu;
  if (rank.has_usage()) object["memory_bytes"] = rank.memory_bytes();
  if (rank.has_usage()) object["processes"] = rank.processes();
  if (rank.output_age_ms() >= 0)
    object["output_age_s"] = static_cast<double>(rank.output_age_ms()) / 1e3;
  if (!uses_devices(rank)) return object;
  object["gpus"] = rank.devices();
  object["gpu_memory_bytes"] = rank.device_bytes();
  if (has_device_load(rank)) object["gpu_percent"] = rank.device_percent();
  return object;
}

// The requested ranks of the newer sample, below the names of the columns.
struct RankTable {
  TextRow names;
  std::vector<ListRow> rows;
  std::vector<bool> failed;  // For each row, whether its rank has exited with another code than 0.
};

RankTable rank_table(const ctl::RanksDescription& before, const ctl::RanksDescription& now,
                     const CtlOptions& options) {
  const bool with_devices = std::any_of(now.ranks().begin(), now.ranks().end(), uses_devices);
  RankTable table;
  for (const RankColumn& column : kColumns)
    if (with_devices || !column.is_of_devices) table.names.emplace_back(column.name);
  std::map<std::uint32_t, const ctl::RankRow*> earlier;
  for (const ctl::RankRow& row : before.ranks()) earlier[row.rank()] = &row;
  for (const ctl::RankRow& row : now.ranks()) {
    if (!options.ranks.includes(static_cast<int>(row.rank()), 1)) continue;
    const auto found = earlier.find(row.rank());
    const auto cpu = found == earlier.end() ? std::nullopt : cpu_percent(*found->second, row);
    ListRow& shown = table.rows.emplace_back(ListRow{{}, rank_object(row, cpu)});
    for (const RankColumn& column : kColumns)
      if (with_devices || !column.is_of_devices) shown.cells.push_back(column.cell(row, cpu));
    const std::string& state = row.state();
    table.failed.push_back(state != "starting" && state != "running" &&
                           state != describe(ExitStatus{}));
  }
  return table;
}

std::string job_line(const ctl::RanksDescription& ranks) {
  const ctl::JobDescription& job = ranks.job();
  const std::string machines = other_machines(job);
  const std::string spares = spares_text(job);
  return short_id(job.job_id()) + (job.name().empty() ? "" : " " + table_cell(job.name(), 24)) +
         ": " + table_cell(job.state(), 24) + ", " + std::to_string(job.running()) + " of " +
         std::to_string(job.world_size()) + " ranks running, " +
         elapsed_since(job.since_unix_ms()) + (machines.empty() ? "" : "; " + machines) +
         (spares.empty() ? "" : "; " + spares) + "\n";
}

// Shows the names of the columns in bold and failed ranks in red.
std::string coloured(std::string_view plain, const RankTable& table, std::size_t lines) {
  std::string text;
  for (std::size_t line = 0; !plain.empty(); ++line) {
    const char* colour = line == 0                                ? "\x1b[1m"
                         : line < lines && table.failed[line - 1] ? "\x1b[31m"
                                                                  : nullptr;
    const std::string words(take_part(plain, '\n'));
    text += (colour == nullptr ? words : colour + words + "\x1b[0m") + "\n";
  }
  return text;
}

// Truncates each line to the width of the terminal.
std::string fitted(std::string_view text) {
  const std::optional<std::size_t> columns = shown_columns();
  if (!columns) return std::string(text);
  std::string out;
  while (!text.empty())
    out += clip_to_columns(take_part(text, '\n'), static_cast<int>(*columns)) + "\n";
  return out;
}

std::string table_text(const RankTable& table, std::size_t max_rows, Colour colour = Colour::kOff) {
  // The columns in the order in which a narrow terminal omits them.
  constexpr std::string_view kDispensable[] = {"PROCS",  "GPUMEM", "MEMORY", "PID",
                                               "OUTPUT", "HOST",   "GPU%",   "CPU%"};
  const std::vector<ListRow>& rows = table.rows;
  std::vector<TextRow> lines{table.names};
  for (std::size_t i = 0; i < rows.size() && i < max_rows; ++i) lines.push_back(rows[i].cells);
  if (const std::optional<std::size_t> columns = shown_columns())
    drop_columns(lines, kDispensable, *columns);
  std::string text = text_columns(lines, "");
  if (rows.size() > max_rows)
    text += "and " + std::to_string(rows.size() - max_rows) + " more (--ranks LIST chooses)\n";
  text = fitted(text);
  return colour == Colour::kOff ? text : coloured(text, table, lines.size());
}

std::size_t terminal_lines() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
  return is_known ? size.ws_row : kUsualLines;
}

// Reads single keys, and restores the terminal at the end or at a signal that terminates this
// process.
class Keys {
 public:
  Keys() {
    if (isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) != getpgrp() ||
        tcgetattr(STDIN_FILENO, &before_) != 0)
      return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
      std::signal(signal, restore_and_end);
    is_raw_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  ~Keys() { restore(); }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  // Returns true if q was pressed within the time.
  bool quit_pressed(milliseconds time) {
    if (!is_raw_) {
      std::this_thread::sleep_for(time);
      return false;
    }
    const std::int64_t deadline_ns = monotonic_ns() + std::chrono::nanoseconds(time).count();
    for (;;) {
      const std::int64_t left = (deadline_ns - monotonic_ns()) / 1'000'000;
      pollfd keys{STDIN_FILENO, POLLIN, 0};
      if (left <= 0 || poll(&keys, 1, static_cast<int>(left)) <= 0) return false;
      char key = 0;
      if (read(STDIN_FILENO, &key, 1) != 1) {
        is_raw_ = false;  // The terminal was closed.
        return false;
      }
      if (key == 'q' || key == 'Q') return true;
    }
  }

 private:
  static void restore() {
    if (is_raw_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  static void restore_and_end(int signal) {
    restore();
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
  // Read by the signal handler.
  static inline termios before_{};
  static inline volatile bool is_raw_ = false;
};

int show_once(const FoundJob& job, const CtlOptions& options) {
  const Result<ctl::RanksDescription> before = request_ranks(job);
  if (!before.ok()) return ctl_fail(before.error());
  std::this_thread::sleep_for(kSamplePause);
  const Result<ctl::RanksDescription> now = request_ranks(job, needs_stacks(*before));
  if (!now.ok()) return ctl_fail(now.error());
  const RankTable table = rank_table(*before, *now, options);
  if (const Result<void> valid = check_ranks(options.ranks, now->job().world_size()); !valid.ok())
    return ctl_fail(valid.error());
  if (!options.json) {
    std::string text = fitted(job_line(*now)) + table_text(table, table.rows.size());
    text.pop_back();  // ctl_print() adds the last line end.
    return ctl_print(text);
  }
  boost::json::array ranks;
  for (const ListRow& row : table.rows) ranks.push_back(row.json);
  return ctl_print(json_line({{"schema", kMachineSchema},
                              {"job", json_text(now->job().job_id())},
                              {"state", json_text(now->job().state())},
                              {"hosts", json_text(hosts_text(now->job()))},
                              {"spares", json_list(spare_names(now->job()))},
                              {"ranks", std::move(ranks)}}));
}

// Returns the error to report if the launcher did not answer, or std::nullopt if the job has ended.
std::optional<Error> why_top_failed(const FoundJob& job, const Error& error) {
  // A launcher that exits closes its socket before it removes the job's directory.
  if (error.code == Code::kUnavailable) std::this_thread::sleep_for(kSamplePause);
  const std::vector<FoundJob> jobs = find_launcher_directories();
  const bool exists = std::any_of(jobs.begin(), jobs.end(), [&](const FoundJob& other) {
    return other.directory.job_id == job.directory.job_id;
  });
  if (!exists) return std::nullopt;
  const Result<FoundJob> running = choose_running_job(job.directory.job_id);
  return running.ok() ? error : running.error();
}

// Runs until the job ends, or the user presses q or Ctrl-C.
int show_always(const FoundJob& job, const CtlOptions& options) {
  ctl::RanksDescription before;
  bool queries_stacks = false;
  const Colour colour =
      decide_colour(ColorChoice::kAuto, is_capable_terminal(STDOUT_FILENO), colour_variables());
  Keys keys;
  for (bool is_first = true;; is_first = false) {
    Result<ctl::RanksDescription> now = request_ranks(job, queries_stacks);
    if (!now.ok() && is_first) return ctl_fail(now.error());
    const Result<void> valid =
        now.ok() ? check_ranks(options.ranks, now->job().world_size()) : Result<void>();
    if (!valid.ok()) return ctl_fail(valid.error());
    if (!now.ok()) {
      if (const auto failure = why_top_failed(job, now.error())) return ctl_fail(*failure);
      ctl_note("job " + short_id(job.directory.job_id) + " has finished");
      return 0;
    }
    const std::size_t lines = std::max(terminal_lines(), kOtherLines + 1) - kOtherLines;
    const std::string text = "\x1b[H\x1b[J" + fitted(job_line(*now)) +
                             table_text(rank_table(before, *now, options), lines, colour);
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return kCtlFailed;
    before = std::move(now).value();
    queries_stacks = queries_stacks ? is_silent(before) : needs_stacks(before);
    if (keys.quit_pressed(is_first ? kSamplePause : kRefreshPause)) return 0;
  }
}

}  // namespace

int ctl_top(const CtlOptions& options) {
  const Result<FoundJob> job = choose_running_job(options.job);
  if (!job.ok()) return ctl_fail(job.error());
  const bool is_once = options.once || options.json || isatty(STDOUT_FILENO) == 0;
  return is_once ? show_once(*job, options) : show_always(*job, options);
}

}  // namespace ivy
