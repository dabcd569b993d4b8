# ivy_job_place: where a job is found and how it is spoken to, for ivyrun and ivyctl.
add_library(ivy_job_place STATIC ctl_wire.cc job_end.cc job_place.cc job_record.cc rank_names.cc)
target_link_libraries(ivy_job_place PUBLIC ivy_contract ivy_proto ivy_launch_core ivy_options)

# ivyctl: talks to launchers on this host, and with `ps -H` to agents.
add_library(ivy_ctl STATIC
  ctl_attach.cc ctl_connection.cc ctl_follow.cc ctl_launcher.cc ctl_logs.cc ctl_options.cc ctl_ps.cc ctl_ps_hosts.cc ctl_table.cc ctl_signal.cc ctl_stack.cc ctl_stop.cc ctl_stop_hosts.cc ctl_why.cc
  hosted_job.cc log_reader.cc)
target_link_libraries(ivy_ctl PUBLIC ivy_job_place ivy_launch_core ivy_agent_links ivy_screen ivy_store_client ivy_handshake ivy_asio)
target_include_directories(ivy_ctl SYSTEM PRIVATE ${IVY_CLI11_INCLUDE})
add_executable(ivyctl ctl_main.cc)
target_link_libraries(ivyctl PRIVATE ivy_ctl)
target_link_options(ivyctl PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
