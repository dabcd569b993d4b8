#include <algorithm>
#include <chrono>
#include <cstdio>

#include "launcher/ctl_connection.h"
#include "launcher/ctl_verbs.h"
#include "launcher/diagnostic.h"
#include "launcher/hosts.h"

namespace ivy {
namespace {

// Of a command in the table; --json has all of it.
constexpr std::size_t kCommandColumns = 60;

struct Row {
  FoundJob job;
  std::string trouble;  // Why there is no description.
  ctl::JobDescription description;
};

std::vector<std::string> host_names(const ctl::JobDescription& job) {
  std::vector<std::string> names;
  for (const ctl::HostPart& host : job.hosts()) names.push_back(host.name());
  return names;
}

std::string elapsed(std::int64_t since_unix_ms) {
  using namespace std::chrono;
  const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  const long long seconds = std::max<std::int64_t>(now - since_unix_ms, 0) / 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                seconds % 60);
  return text;
}

std::string command_line(const ctl::JobDescription& job) {
  std::string text;
  for (const std::string& word : job.command()) text += (text.empty() ? "" : " ") + word;
  return text;
}

// One line, whatever bytes are in it.
std::string cell(const std::string& text, std::size_t columns) {
  std::string clean = escape_control(text);
  std::replace(clean.begin(), clean.end(), '\n', ' ');
  if (clean.size() <= columns) return clean;
  return clean.substr(0, columns - 3) + "...";
}

std::vector<std::string> cells_of(const Row& row) {
  const ctl::JobDescription& job = row.description;
  const std::string id = short_id(row.job.place.job_id);
  if (!row.trouble.empty()) return {id, "-", row.trouble, "-", "-", "-", "-"};
  const std::string ranks = job.world_size() == 0 ? "-"
                                                  : std::to_string(job.running()) + "/" +
                                                        std::to_string(job.world_size());
  return {id,
          std::to_string(job.pid()),
          job.state(),
          cell(fold_host_names(host_names(job)), kCommandColumns),
          ranks,
          elapsed(job.since_unix_ms()),
          cell(command_line(job), kCommandColumns)};
}

void print_table(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> lines{
      {"JOB", "PID", "STATE", "HOSTS", "RUNNING", "TIME", "COMMAND"}};
  for (const Row& row : rows) lines.push_back(cells_of(row));
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (auto& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (i + 1 < line.size()) line[i].resize(widths[i] + 2, ' ');
      text += line[i];
    }
    std::printf("%s\n", text.c_str());
  }
}

// JSON has no bytes: what is no ASCII is written byte by byte unless it is UTF-8 already.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xc2 && lead < 0xe0 ? 2
                               : lead >= 0xe0 && lead < 0xf0 ? 3
                               : lead >= 0xf0 && lead < 0xf5 ? 4
                                                             : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t j = 1; j < length; ++j)
      if ((static_cast<unsigned char>(text[i + j]) & 0xc0) != 0x80) return false;
    i += length;
  }
  return true;
}

std::string json_text(const std::string& text) {
  const bool utf8 = is_utf8(text);
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !utf8)) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <class Words>
std::string json_list(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + json_text(word);
  return "[" + text + "]";
}

std::string json_of(const Row& row) {
  const ctl::JobDescription& job = row.description;
  std::string text = "  {\"job\": " + json_text(row.job.place.job_id);
  if (!row.trouble.empty()) return text + ", \"state\": " + json_text(row.trouble) + "}";
  text += ", \"pid\": " + std::to_string(job.pid()) + ", \"state\": " + json_text(job.state()) +
          ", \"hosts\": " + json_list(host_names(job)) +
          ", \"world_size\": " + std::to_string(job.world_size()) +
          ", \"running\": " + std::to_string(job.running()) +
          ", \"ended\": " + std::to_string(job.ended()) +
          ", \"since_unix_ms\": " + std::to_string(job.since_unix_ms()) +
          ", \"command\": " + json_list(job.command()) +
          ", \"working_directory\": " + json_text(job.working_directory()) +
          ", \"log_directory\": " + json_text(job.log_directory()) +
          ", \"generation\": " + std::to_string(job.generation()) +
          ", \"detached\": " + (job.detached() ? "true" : "false");
  return text + "}";
}

void print_json(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) text += (text.empty() ? "\n" : ",\n") + json_of(row);
  std::printf("[%s%s]\n", text.c_str(), rows.empty() ? "" : "\n");
}

}  // namespace

int ctl_ps(const CtlOptions& options) {
  std::vector<Row> rows;
  for (const FoundJob& job : find_job_places()) {
    Row row{job, "", {}};
    if (!job.is_alive) {
      row.trouble = "no launcher";
    } else if (Result<ctl::JobDescription> described = describe_job(job.place); described.ok()) {
      row.description = std::move(described).value();
    } else if (described.error().code == Code::kUnavailable) {
      continue;  // It ended while we looked.
    } else {
      row.trouble = "not answering";
    }
    rows.push_back(std::move(row));
  }
  if (options.json) {
    print_json(rows);
  } else if (rows.empty()) {
    ctl_say("no job of yours runs on this host");
  } else {
    print_table(rows);
  }
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
