# ivyrun itself. Everything that can be static is, for a fast start.
add_library(ivy_job STATIC
  job.cc job_control.cc job_events.cc job_record.cc job_resume.cc job_socket.cc follow_queue.cc
  detach.cc detached_output.cc env_files.cc host_session.cc interpreter.cc stdin_feed.cc waiting_line.cc hints.cc)
target_link_libraries(ivy_job PUBLIC ivy_job_place ivy_launch_core ivy_links ivy_screen ivy_log ivy_asio)
add_executable(ivyrun main.cc)
target_link_libraries(ivyrun PRIVATE ivy_job)
target_link_options(ivyrun PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
if(NOT IVY_SANITIZE)
  # At a fixed address: thousands of relocations less at every start.
  set_target_properties(ivyrun PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_options(ivyrun PRIVATE -no-pie)
endif()
# An ivyrun without its bundle could start nothing elsewhere.
if(TARGET ivy_bundle)
  add_dependencies(ivyrun ivy_bundle)
endif()
