// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/rank_files.h"

#include <optional>
#include <utility>

#include "launcher/report/placeholders.h"

namespace ivy {
namespace {

RankFileSet::Request pattern_request(const RankFiles::Request& files) {
  const std::string& pattern = files.options.output;
  RankFileSet::Request request{.flag = "--output"};
  // A pattern without %a means one file for all attempts.
  request.appends =
      files.appends || (files.generation > 0 && pattern.find("%a") == std::string::npos);
  for (const RankLocation& location : files.locations) {
    PlaceholderValues values{.rank = location.rank,
                             .local_rank = location.local_rank,
                             .host_index = location.host_index,
                             .host = location.host,
                             .job_id = files.job_id,
                             .generation = files.generation};
    for (const int stream : {1, 2}) {
      values.stream = stream;
      request.paths[location.rank][stream - 1u] = filled_template(pattern, values);
    }
  }
  return request;
}

RankFileSet::Request log_dir_request(const RankFiles::Request& files) {
  const OutputOptions& options = files.options;
  const std::string folder = log_folder(options.log_dir, files.job_id, files.generation);
  RankFileSet::Request request{.flag = "--log-dir"};
  request.folders = {folder};
  request.appends = files.appends;
  for (const RankLocation& location : files.locations)
    for (const int stream : {1, 2})
      request.paths[location.rank][stream - 1u] =
          folder + "/" + log_file_name(location.rank, stream);
  request.on_folders = [directory = options.log_dir, job_id = files.job_id] {
    link_latest(directory, job_id);
  };
  return request;
}

}  // namespace

void RankFiles::open(const Request& request, std::function<void(const Result<void>&)> opened) {
  const OutputOptions& options = request.options;
  if (!options.log_dir.empty() && options.log_to != LogLocation::kNode)
    opened = [this, own = log_dir_request(request), opened](const Result<void>& begun) {
      if (!begun.ok()) return opened(begun);
      log_dir_.open_all(own, opened);
    };
  // The pattern's files are opened first: if the pattern gives two ranks one file, no directory is
  // left behind.
  if (options.output.empty() || request.locations.empty()) return opened({});
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

std::vector<std::string> RankFiles::output_errors() const {
  std::vector<std::string> all;
  for (const RankFileSet* files : {&log_dir_, &pattern_})
    if (!files->write_error().empty()) all.push_back(files->write_error());
  return all;
}

void RankFiles::take_done() {
  log_dir_.take_done();
  pattern_.take_done();
}

}  // namespace ivy
