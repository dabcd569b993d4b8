#include "comm/group/tuning_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/collectives/tuning_text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy::comm {
namespace {

// The marks that precede what is wrong, and what to do about it.
constexpr char kWrong = '!';
constexpr char kFix = '\t';

Error unreadable(const std::string& path, const std::string& why) {
  return Error{Code::kInvalidArgument, "IVY_TUNING_FILE=" + path + " cannot be read: " + why,
               "put the file on every host, or unset the variable on all ranks"};
}

Result<std::string> content_of(const std::string& path) {
  // Do not wait for the writer of a pipe.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about = {};
  if (!file || fstat(file.get(), &about) != 0) return unreadable(path, strerror(errno));
  if (!S_ISREG(about.st_mode)) return unreadable(path, "it is no file");
  // One byte more than is allowed shows what is too long.
  std::optional<std::string> content = read_from(file.get(), kTuningTextMax + 1);
  if (!content) return unreadable(path, strerror(errno));
  return *std::move(content);
}

Result<TuningTable> table_from(const std::string& path) {
  const std::string content = IVY_TRY(content_of(path));
  return parse_tuning(content, path);
}

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return text;
}

std::string name_of(const SaidTuning& rank) {
  return "rank " + std::to_string(rank.rank) + " on " + rank.host;
}

std::string table_of(const SaidTuning& rank) {
  if (rank.said.empty())
    return name_of(rank) + " has none (IVY_TUNING_FILE is not set, or its file has no rows)";
  const std::size_t blank = rank.said.find(' ');
  return name_of(rank) + " has " + rank.said.substr(std::min(blank, rank.said.size() - 1) + 1) +
         " (" + rank.said.substr(0, blank) + ")";
}

}  // namespace

OwnTuning read_tuning(const std::string& path) {
  OwnTuning own;
  if (path.empty()) return own;
  Result<TuningTable> table = table_from(path);
  if (!table.ok()) {
    own.said = kWrong + one_line(table.error().message) + kFix + one_line(table.error().fix);
    return own;
  }
  own.table = std::move(table).value();
  if (!own.table.empty()) own.said = tuning_hash(own.table) + " " + one_line(path);
  return own;
}

std::optional<Error> tuning_trouble(const std::vector<SaidTuning>& all) {
  for (const SaidTuning& rank : all) {
    if (rank.said.empty() || rank.said[0] != kWrong) continue;
    const std::size_t fix = std::min(rank.said.find(kFix), rank.said.size());
    const std::string what = rank.said.substr(1, fix - 1);
    return Error{Code::kInvalidArgument, name_of(rank) + ": " + what,
                 rank.said.substr(std::min(fix + 1, rank.said.size()))};
  }
  // The hash says what the rows say; where they are from does not matter.
  const auto hash = [](const SaidTuning& rank) { return rank.said.substr(0, rank.said.find(' ')); };
  for (const SaidTuning& rank : all) {
    if (hash(rank) == hash(all.front())) continue;
    return Error{
        Code::kFailedPrecondition,
        "ranks have different tuning tables: " + table_of(all.front()) + ", " + table_of(rank),
        "let IVY_TUNING_FILE name one table on all ranks, or unset it on all"};
  }
  return std::nullopt;
}

}  // namespace ivy::comm
