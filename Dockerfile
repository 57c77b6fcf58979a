# The service with the packaged models, on a CPU:
#   docker build -t rdlm .
#   docker run -p 8000:8000 -e RDLM_TOKEN=$(openssl rand -hex 16) rdlm
# Any other command: docker run -v "$PWD:/data" rdlm train --data book.txt --minutes 3
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt '.[serve,viz]' \
    && rm -rf /src/*

RUN useradd --create-home rdlm && mkdir /data && chown rdlm /data
USER rdlm
WORKDIR /data
ENV RDLM_CACHE=/home/rdlm/.cache/rdlm
EXPOSE 8000
ENTRYPOINT ["rdlm"]
CMD ["serve", "--host", "0.0.0.0"]
