# ivy_launch_core: the launcher's pure part, and the one file that knows CLI11.
set(IVY_LAUNCH_CORE_SOURCES
  core_split.cc device_plan.cc device_request.cc device_text.cc diagnostic.cc env_file_grammar.cc explain_env.cc exports.cc hosts.cc job_state.cc membership.cc news_board.cc operation_lines.cc option_scan.cc option_table.cc option_values.cc options.cc
  master_address.cc plan.cc plan_checks.cc plan_text.cc restart_policy.cc text_columns.cc verdict.cc worker_devices.cc
  worker_environment.cc
  flight_analysis.cc flight_record.cc plain_pickle.cc stack_lines.cc stack_text.cc
  links/carrier_kind.cc
  slurm/step.cc slurm/allocation.cc slurm/allocation_end.cc slurm/device_checks.cc slurm/nodelist.cc slurm/placement.cc slurm/worker_variables.cc)
list(TRANSFORM IVY_LAUNCH_CORE_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
add_library(ivy_launch_core STATIC ${IVY_LAUNCH_CORE_SOURCES})
target_link_libraries(ivy_launch_core PUBLIC ivy_contract ivy_proto ivy_options)
find_path(IVY_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
target_include_directories(ivy_launch_core SYSTEM PRIVATE ${IVY_CLI11_INCLUDE})
