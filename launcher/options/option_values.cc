// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_values.h"

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>

#include "launcher/report/placeholders.h"
#include "proto/contract/resource_limit.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Characters that look like a blank or like nothing.
constexpr std::pair<std::uint32_t, std::uint32_t> kInvisible[] = {
    {0xa0, 0xa0},     {0xad, 0xad},     {0x1680, 0x1680}, {0x2000, 0x200f}, {0x2028, 0x202f},
    {0x205f, 0x2064}, {0x2066, 0x2069}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

// Returns the code point at the start of the text if it has two or three bytes in UTF-8, as all
// invisible ones do, and its size in bytes. Returns 0 for other text.
std::pair<std::uint32_t, std::size_t> code_point_of(std::string_view text) {
  const auto byte = [&](std::size_t index) -> std::uint32_t {
    return static_cast<unsigned char>(text[index]);
  };
  const auto continues = [&](std::size_t index) {
    return index < text.size() && (byte(index) & 0xc0) == 0x80;
  };
  if ((byte(0) & 0xe0) == 0xc0 && continues(1))
    return {(byte(0) & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if ((byte(0) & 0xf0) == 0xe0 && continues(1) && continues(2))
    return {(byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {0, 1};
}

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const auto [code, size] = code_point_of(text);
    const bool is_invisible = std::ranges::any_of(kInvisible, [code = code](const auto& range) {
      return code >= range.first && code <= range.second;
    });
    char name[16];
    std::snprintf(name, sizeof name, "<U+%04X>", code);
    quoted += is_invisible ? std::string_view(name) : text.substr(0, size);
    text.remove_prefix(size);
  }
  return quoted + "\"";
}

namespace {

Error invalid(std::string_view text, const std::string& wanted, std::string_view fix = "") {
  return Error{Code::kInvalidArgument, in_quotes(text) + " is not " + wanted, std::string(fix)};
}

}  // namespace

Result<int> parse_number(std::string_view text, int low, int high) {
  const std::optional<int> number = to_number<int>(text);
  if (!number || *number < low || *number > high)
    return invalid(text, "a number from " + std::to_string(low) + " to " + std::to_string(high));
  return *number;
}

namespace {

constexpr std::string_view kTimeForms = "a time such as 90, 1.5s, 250ms, 30m, 1h30m or 01:30:00";

// Parses "1h30m" and "1.5s": numbers with units, each unit smaller than the previous one. A number
// without a unit is in seconds.
std::optional<double> milliseconds_of_units(std::string_view text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
  double sum = 0;
  double last_unit = std::numeric_limits<double>::infinity();
  while (!text.empty()) {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
    // Written so that "nan" fails too.
    if (error != std::errc{} || !(number >= 0)) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    const std::size_t length = std::min(text.find_first_of("0123456789."), text.size());
    const std::string_view unit = text.substr(0, length);
    const auto* known = std::find_if(std::begin(kUnits), std::end(kUnits),
                                     [&](const auto& entry) { return entry.first == unit; });
    const bool is_part = last_unit < std::numeric_limits<double>::infinity();
    if (known == std::end(kUnits) || known->second >= last_unit || (unit.empty() && is_part))
      return std::nullopt;
    sum += number * known->second;
    last_unit = known->second;
    text.remove_prefix(length);
  }
  if (last_unit == std::numeric_limits<double>::infinity()) return std::nullopt;
  return sum;
}

}  // namespace

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const bool is_clock = text.find(':') != std::string_view::npos;
  std::optional<double> milliseconds = is_clock ? clock_seconds(text) : milliseconds_of_units(text);
  if (is_clock && milliseconds) *milliseconds *= 1e3;
  if (!milliseconds) return invalid(text, std::string(kTimeForms));
  if (*milliseconds > std::chrono::duration<double, std::milli>(kMaxDuration).count())
    return invalid(text, "shorter than a year");
  return std::chrono::milliseconds(static_cast<std::int64_t>(*milliseconds));
}

Result<RequestedLimit> parse_limit(std::string_view text) {
  std::string_view rest = text;
  const std::string_view name = take_part(rest, '=');
  const ResourceName* const resource = find_resource(name);
  if (resource == nullptr || name.size() == text.size()) {
    std::vector<std::string_view> names;
    for (const ResourceName& known : resource_names()) names.push_back(known.name);
    return usage_error("\"" + std::string(text) + "\" is not NAME=VALUE with one of the names " +
                           joined(names, ", "),
                       "nofile=65536, stack=unlimited");
  }
  RequestedLimit limit{resource->number, kUnlimited};
  if (rest == "unlimited") return limit;
  if (read_number(rest, limit.value)) return limit;
  if (resource->unit == "B") {
    const Result<std::uint64_t> size = parse_size(rest);
    if (!size.ok()) return invalid(rest, "a size such as 64M or 1048576, or \"unlimited\"");
    limit.value = *size;
    return limit;
  }
  return invalid(rest, resource->unit == "s" ? "a number of seconds, or \"unlimited\""
                                             : "a number, or \"unlimited\"");
}

Result<PerHost> parse_per_host(std::string_view text) {
  PerHost result;
  result.written = true;
  if (text == "auto") return result;
  if (text == "gpu") {
    result.kind = PerHost::Kind::kGpu;
  } else if (text == "xpu") {
    result.kind = PerHost::Kind::kXpu;
  } else if (text == "cpu") {
    result.kind = PerHost::Kind::kCpu;
  } else {
    const Result<int> number = parse_number(text, 1, kMaxWorkers);
    if (!number.ok()) return invalid(text, "a number of workers, auto, gpu, xpu or cpu");
    result.kind = PerHost::Kind::kNumber;
    result.number = number.value();
  }
  return result;
}

Result<int> parse_num_proc(std::string_view text) {
  Result<int> number = parse_number(text, 1, kMaxWorkers);
  if (number.ok() || !parse_per_host(text).ok()) return number;
  return Error{Code::kInvalidArgument, number.error().message,
               "--nproc-per-node " + std::string(text) + ", which counts the workers of each host"};
}

Result<MapChoice> parse_map_by(std::string_view text) {
  if (text == "host" || text == "slot") return MapChoice::kHost;
  if (text == "nvlink") return MapChoice::kNvlink;
  if (text == "switch") return MapChoice::kSwitch;
  return invalid(text, "one of host, nvlink, switch",
                 "instead of ppr:N:node use --nproc-per-node N, and --bind-to for cores;\n"
                 "otherwise leave it out: ranks fill the hosts in the order of -H");
}

Result<BindChoice> parse_bind_to(std::string_view text) {
  using enum BindChoice;
  // torchrun's node, exclusive and core-complex; srun's plurals and ldoms; mpirun's l3cache.
  constexpr std::pair<std::string_view, BindChoice> kWords[] = {
      {"none", kNone},       {"core", kCore},  {"l3", kL3},          {"numa", kNuma},
      {"socket", kSocket},   {"auto", kAuto},  {"node", kNuma},      {"exclusive", kCore},
      {"core-complex", kL3}, {"l3cache", kL3}, {"package", kSocket}, {"cores", kCore},
      {"sockets", kSocket},  {"ldoms", kNuma}};
  for (const auto& [word, choice] : kWords)
    if (text == word) return choice;
  return invalid(text, "one of none, core, l3, numa, socket");
}

namespace {

// The first word of each profile is its name.
constexpr std::pair<std::string_view, Profile> kProfiles[] = {
    {"torch", Profile::kTorch},    {"pytorch", Profile::kTorch},
    {"auto", Profile::kTorch},     {"jax", Profile::kJax},
    {"numpy", Profile::kNumpy},    {"cupy", Profile::kCupy},
    {"paddle", Profile::kPaddle},  {"tensorflow", Profile::kTensorflow},
    {"tf", Profile::kTensorflow},  {"mpi", Profile::kMpi},
    {"mlx", Profile::kMlx},        {"lightgbm", Profile::kLightgbm},
    {"horovod", Profile::kHorovod}};

}  // namespace

std::string profile_name(Profile wanted) {
  for (const auto& [word, profile] : kProfiles)
    if (profile == wanted) return std::string(word);
  return {};
}

Result<Profile> parse_profile(std::string_view text) {
  for (const auto& [word, profile] : kProfiles)
    if (text == word) return profile;
  return invalid(text,
                 "one of torch, jax, tensorflow, numpy, cupy, paddle, mpi, mlx, lightgbm, horovod",
                 text == "nccl" || text == "gloo"
                     ? "choose it in the script: init_process_group(\"" + std::string(text) + "\")"
                     : "");
}

namespace {

// Parses "8" or "8-15", both within [low, high].
std::optional<std::pair<int, int>> parse_range(std::string_view text, int low, int high) {
  const Result<int> first = parse_number(text.substr(0, text.find('-')), low, high);
  const Result<int> last = parse_number(text.substr(text.find('-') + 1), low, high);
  if (!first.ok() || !last.ok() || *last < *first) return std::nullopt;
  return std::pair(*first, *last);
}

}  // namespace

Result<ShowRanks> parse_show_ranks(std::string_view text) {
  ShowRanks result;
  if (text == "all") return result;
  result.all = false;
  result.first_per_host = text == "first-per-host";
  result.failed = text == "failed";
  if (result.first_per_host || result.failed) return result;
  std::string_view rest = text;
  for (bool is_last = false; !is_last;) {
    is_last = rest.find(',') == std::string_view::npos;
    const auto range = parse_range(take_part(rest, ','), 0, kMaxWorkers - 1);
    if (!range)
      return invalid(text, "a list of ranks such as 0,8-15, all, first-per-host or failed");
    for (int rank = range->first; rank <= range->second; ++rank) result.ranks.push_back(rank);
    // Overlapping ranges may repeat ranks, but only up to this limit.
    if (result.ranks.size() > 2u * kMaxWorkers) return invalid(text, "a list of that many ranks");
  }
  std::sort(result.ranks.begin(), result.ranks.end());
  result.ranks.erase(std::unique(result.ranks.begin(), result.ranks.end()), result.ranks.end());
  return result;
}

Result<InputChoice> parse_input(std::string_view text) {
  if (text == "all") return InputChoice{InputChoice::Kind::kAll};
  if (text == "none") return InputChoice{InputChoice::Kind::kNone};
  const Result<int> rank = parse_number(text, 0, kMaxWorkers - 1);
  if (!rank.ok()) return invalid(text, "a rank, all or none");
  return InputChoice{InputChoice::Kind::kRank, *rank};
}

Result<std::string> parse_label(std::string_view text) {
  for (const std::string_view word : {"auto", "none", "rank", "host"})
    if (text == word) return std::string(text);
  if (text.find('%') == std::string_view::npos)
    return invalid(text, "a label",
                   "auto, none, rank, host, or a template such as '%r %h'; -l labels by rank");
  if (const auto unknown = unknown_placeholder(text))
    return invalid(*unknown, "a placeholder of a label", kPlaceholderNames);
  return std::string(text);
}

Result<std::string> parse_output_pattern(std::string_view text) {
  // Open MPI's values of the same flag specify the form of lines, or a folder.
  for (const std::string_view word : {"tag", "tag-detailed", "tag-fullname", "timestamp", "xml"}) {
    if (text.substr(0, text.find_first_of(",:")) == word)
      return invalid(text, "a pattern of file names",
                     "labels are on by default; see --label and --timestamps");
  }
  const bool is_folder =
      text.empty() || text.back() == '/' || text.starts_with("dir=") || text.starts_with("file=");
  if (is_folder)
    return invalid(text, "a pattern of file names",
                   "give a pattern such as 'logs/%h-%r.log'; for a directory use --log-dir DIR");
  if (const auto unknown = unknown_placeholder(text))
    return invalid(*unknown, "a placeholder of a file name", kPlaceholderNames);
  return std::string(text);
}

Result<StreamChoice> parse_streams(std::string_view text) {
  const auto wrong = [&] {
    Error error = invalid(text,
                          "0, 1 (standard output), 2 (standard error) or 3 (both), or one of them "
                          "for each local rank, such as 0:3,1:2");
    // srun's -t is the time limit, in minutes or as hours, minutes and seconds.
    const bool is_minutes = text.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_minutes || parse_duration(text).ok())
      error.fix = "for a time limit use --timeout " + std::string(text) + (is_minutes ? "m" : "");
    return error;
  };
  const auto parse_bits = [](std::string_view bits) {
    return bits.size() == 1 ? parse_number(bits, 0, 3) : Result<int>(Error{});
  };
  StreamChoice choice;
  if (const Result<int> everywhere = parse_bits(text); everywhere.ok()) {
    choice.everywhere = *everywhere;
    return choice;
  }
  std::string_view rest = text;
  while (true) {
    const bool is_last = rest.find(',') == std::string_view::npos;
    const std::string_view part = take_part(rest, ',');
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) return wrong();
    const Result<int> rank = parse_number(part.substr(0, colon), 0, kMaxWorkers - 1);
    const Result<int> bits = parse_bits(part.substr(colon + 1));
    if (!rank.ok() || !bits.ok() || !choice.by_local_rank.emplace(*rank, *bits).second)
      return wrong();
    if (is_last) return choice;
  }
}

Result<std::pair<std::uint16_t, std::uint16_t>> parse_port_range(std::string_view text) {
  const auto range = parse_range(text, 1, 65535);
  if (!range) return invalid(text, "a range of ports such as 20000-20100");
  return std::pair(static_cast<std::uint16_t>(range->first),
                   static_cast<std::uint16_t>(range->second));
}

Result<MountChoice> parse_container_mount(std::string_view text) {
  std::vector<std::string_view> parts = parts_of(text, ':');
  MountChoice mount;
  if (parts.size() == 3 && (parts.back() == "ro" || parts.back() == "rw")) {
    mount.read_only = parts.back() == "ro";
    parts.pop_back();
  }
  const bool is_valid = (parts.size() == 1 || parts.size() == 2) &&
                        parts.front().starts_with('/') && parts.back().starts_with('/');
  if (!is_valid)
    return usage_error("\"" + std::string(text) + "\" is not SOURCE:TARGET or SOURCE:TARGET:ro",
                       "use absolute paths without colons, such as /data:/data:ro");
  mount.source = parts.front();
  mount.target = parts.back();
  return mount;
}

Result<std::string> parse_event_target(const std::string& text) {
  if (text.starts_with("fd:")) {
    const Result<int> number = parse_number(text.substr(3), 0, 1 << 20);
    if (!number.ok()) return number.error();
    if (fcntl(*number, F_GETFD) < 0)
      return usage_error("descriptor " + text.substr(3) + " is not open",
                         "open it for ivyrun: ivyrun --events " + text + " ... " + text.substr(3) +
                             ">events.jsonl");
    return text;
  }
  if (text == "-") return std::string("fd:1");
  return absolute_log_path(text);
}

Result<std::string> absolute_log_path(const std::string& text) {
  if (text.empty()) return usage_error("the file name is missing");
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(text, error);
  if (error) return usage_error(error.message());
  if (std::filesystem::is_directory(path, error)) return usage_error(text + " is a directory");
  return path.lexically_normal().string();
}

Result<std::vector<std::string>> quoted_words(std::string_view text) {
  std::vector<std::string> all;
  std::string word;
  char quote = 0;
  bool has_word = false;
  for (const char c : text) {
    if (quote != 0 ? c == quote : (c == '\'' || c == '"')) {
      quote = quote != 0 ? char{0} : c;
      has_word = true;
    } else if (quote == 0 && (c == ' ' || c == '\t')) {
      if (has_word) all.push_back(std::exchange(word, {}));
      has_word = false;
    } else {
      word += c;
      has_word = true;
    }
  }
  if (quote != 0) return usage_error("a quote is not closed");
  if (has_word) all.push_back(word);
  return all;
}

Result<std::vector<std::string>> parse_wrap(std::string_view text) {
  std::vector<std::string> words = IVY_TRY(quoted_words(text));
  if (words.empty()) return usage_error("the command is empty", "--wrap 'perf record -o perf.%r'");
  if (const auto unknown = unknown_placeholder(text))
    return invalid(*unknown, "a placeholder", kPlaceholderNames);
  return words;
}

Result<std::vector<std::string>> parse_modules(std::string_view text) {
  // The names travel in a variable and are imported one by one; nobody types more.
  constexpr std::size_t kMaxModules = 64;
  std::vector<std::string> modules;
  for (const std::string_view name : parts_of(text, ',')) {
    const bool is_dotted = !name.empty() && name.front() != '.' && name.back() != '.' &&
                           name.find("..") == std::string_view::npos;
    const bool is_name = std::all_of(name.begin(), name.end(), [](unsigned char letter) {
      return std::isalnum(letter) != 0 || letter == '_' || letter == '.' || letter >= 0x80;
    });
    if (!is_dotted || !is_name || std::isdigit(static_cast<unsigned char>(name.front())) != 0)
      return usage_error(in_quotes(name) + " is not the name of a Python module",
                         "separate modules with commas, as in torch,transformers");
    modules.emplace_back(name);
  }
  if (modules.size() > kMaxModules)
    return usage_error("more than " + std::to_string(kMaxModules) + " modules");
  return modules;
}

Result<std::string> parse_job_name(const std::string& text) {
  constexpr std::size_t kMaxNameBytes = 64;
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (is_plain && !text.empty() && text.size() <= kMaxNameBytes && text.front() != '-') return text;
  return invalid(text, "a name of at most 64 letters, digits, dots, dashes and underscores");
}

Result<Pattern> parse_progress_pattern(std::string_view text) {
  Pattern pattern = IVY_TRY(Pattern::compile(std::string(text)));
  if (pattern.groups() > 0) return pattern;
  return usage_error("\"" + std::string(text) + "\" has no group for the number of the step",
                     "put it into parentheses: 'step (\\d+)'");
}

Result<std::uint64_t> parse_size(std::string_view text) {
  const Error error = usage_error("\"" + std::string(text) + "\" is not a size", "500M, 2G, 1.5G");
  const std::string lower = lower_case(text);
  std::size_t end = lower.find_first_not_of("0123456789.");
  const std::string digits = lower.substr(0, end);
  std::string unit = end == std::string::npos ? "" : lower.substr(end);
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with("b")) unit.pop_back();
  constexpr std::string_view kUnits = "kmgt";
  const std::size_t power = unit.empty() ? 0 : kUnits.find(unit) + 1;
  const std::optional<double> number = to_number<double>(digits);
  const bool is_known = unit.empty() || (unit.size() == 1 && power != 0);
  if (!number || !is_known || *number <= 0 || *number > 1e9) return error;
  double bytes = *number;
  for (std::size_t i = 0; i < power; ++i) bytes *= 1024;
  if (bytes > 1e18) return error;
  return static_cast<std::uint64_t>(bytes);
}

Result<std::string> parse_stage_target(const std::string& text) {
  if (text.starts_with("/") || text.starts_with("~/")) return text;
  return usage_error("\"" + text + "\" is not an absolute path on the hosts",
                     "/scratch/" + text + ", ~/" + text);
}

Result<bool> parse_switch(std::string_view text) {
  for (const std::string_view yes : {"1", "true", "yes", "on"})
    if (text == yes) return true;
  for (const std::string_view no : {"0", "false", "no", "off"})
    if (text == no) return false;
  return invalid(text, "true or false");
}

}  // namespace ivy
