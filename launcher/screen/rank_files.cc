// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/rank_files.h"

#include <optional>
#include <utility>

#include "launcher/report/placeholders.h"

namespace ivy {
namespace {

LogFiles::Request pattern_request(const RankFiles::Request& asked) {
  const std::string& pattern = asked.options.output;
  LogFiles::Request request{.flag = "--output"};
  // A pattern without %a means one file for all attempts.
  request.appends =
      asked.appends || (asked.generation > 0 && pattern.find("%a") == std::string::npos);
  for (const RankPlace& place : asked.places) {
    PlaceholderValues values{.rank = place.rank,
                             .local_rank = place.local_rank,
                             .host_index = place.host_index,
                             .host = place.host,
                             .job_id = asked.job_id,
                             .generation = asked.generation};
    for (const int stream : {1, 2}) {
      values.stream = stream;
      request.paths[place.rank][stream - 1u] = filled_template(pattern, values);
    }
  }
  return request;
}

LogFiles::Request log_dir_request(const RankFiles::Request& asked) {
  const OutputOptions& options = asked.options;
  const std::string folder = log_folder(options.log_dir, asked.job_id, asked.generation);
  LogFiles::Request request{.flag = "--log-dir"};
  request.folders = {folder};
  request.appends = asked.appends;
  for (const RankPlace& place : asked.places)
    for (const int stream : {1, 2})
      request.paths[place.rank][stream - 1u] = folder + "/" + log_file_name(place.rank, stream);
  request.on_folders = [directory = options.log_dir, job_id = asked.job_id] {
    link_latest(directory, job_id);
  };
  return request;
}

}  // namespace

void RankFiles::open(const Request& request, std::function<void(const Result<void>&)> opened) {
  const OutputOptions& options = request.options;
  if (!options.log_dir.empty() && options.log_to != LogPlace::kNode)
    opened = [this, own = log_dir_request(request), opened](const Result<void>& begun) {
      if (!begun.ok()) return opened(begun);
      log_dir_.open_all(own, opened);
    };
  // The pattern's files are opened first: if the pattern gives two ranks one file, no directory is
  // left behind.
  if (options.output.empty() || request.places.empty()) return opened({});
  pattern_.open_all(pattern_request(request), std::move(opened));
}

void RankFiles::write(int rank, int stream, std::string_view bytes) {
  log_dir_.write(rank, stream, bytes);
  pattern_.write(rank, stream, bytes);
}

void RankFiles::close(int rank, int stream) {
  log_dir_.close(rank, stream);
  pattern_.close(rank, stream);
}

const std::string& RankFiles::path(int rank, int stream) const {
  const std::string& own = log_dir_.path(rank, stream);
  return own.empty() ? pattern_.path(rank, stream) : own;
}

std::optional<std::uint64_t> RankFiles::size_at_open(int rank, int stream) const {
  if (log_dir_.path(rank, stream).empty()) return std::nullopt;
  return log_dir_.size_at_open(rank, stream);
}

std::vector<std::string> RankFiles::complaints() const {
  std::vector<std::string> all;
  for (const LogFiles* files : {&log_dir_, &pattern_})
    if (!files->complaint().empty()) all.push_back(files->complaint());
  return all;
}

void RankFiles::take_done() {
  log_dir_.take_done();
  pattern_.take_done();
}

}  // namespace ivy
