"""Run the command in argv; write the peak of its memory, in units of 1024 bytes."""

import resource
import subprocess
import sys

subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}\n")
